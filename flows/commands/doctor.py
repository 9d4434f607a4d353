"""`nip doctor`: what can run on this machine."""

import typer

from nip_prefect.flows.options import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Tell what is installed, which engines can run, and what is missing."""
    from nip_prefect.flows.doctor import examine, summary
    from nip_prefect.flows.printing import print_json

    findings = examine()
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        for finding in findings:
            print(f"{'ok  ' if finding.ok else 'no  '}{finding.what:<22}{finding.detail}")
        print(f"\n{summary(findings)}")
    if any(finding.needed and not finding.ok for finding in findings):
        raise typer.Exit(1)
