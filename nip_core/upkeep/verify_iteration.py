"""One iteration of a run on record: each of its files against the files that it was made from."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nip_core.attack_figures.metrics_document import CourseEnd
from nip_core.errors import StoreError
from nip_core.hashing import digest
from nip_core.jobs.document import read_job
from nip_core.jobs.job import JobRecord
from nip_core.records.attack_course import course_path, read_course
from nip_core.records.models import name_opponents
from nip_core.records.transcript_files import CHECKSUM_SUFFIX
from nip_core.rollouts.plan import CANDIDATE, EVERY_SPLIT, TEST, TRAIN, may_choose
from nip_core.rollouts.storage.shard_manifests import shard_manifest, shards_of
from nip_core.run_store.manifest import MANIFEST, MANIFEST_NAME, Manifest, measure_file
from nip_core.upkeep.file_checks import Check, as_local


class IterationCheck:
    """One iteration. Problems stand at the file that is wrong, not at those that speak of it."""

    def __init__(self, check: Check, number: int) -> None:
        self.check_, self.run, self.number = check, check.run, number
        self.directory = check.run.iteration(number)
        self.epoch = 0
        self._before = check.run.models(number - 1) if number else None

    def check(self) -> None:
        """All of it."""
        check, run, number = self.check_, self.run, self.number
        later = bool(check.under(run.iteration(number + 1))) if number < 9999 else False
        has_times = f"{self.directory}/times.json" in check.present
        demanded = "the next iteration" if later else "times.json" if has_times else None
        self.models = check.document(run.models(number), demanded_by=demanded)
        self.is_swapped = run.models(number) in check.present
        self.jobs = self._read_jobs()
        self.course = self._read_course()
        for split in {*check.names(f"{self.directory}/rollouts"), *self._measured()}:
            self._split(split)
        for split in filter(may_choose, EVERY_SPLIT):
            self._tests_of_course(split)
        for group in {*check.names(f"{self.directory}/datasets"), *self.jobs}:
            self._dataset(group)
        self._swap()
        if (so_far := f"{self.directory}/times-so-far.json") in check.present:
            check.document(so_far)
        if has_times:
            check.document(f"{self.directory}/times.json")
        elif self.jobs and self.is_swapped:
            check.notes.append(
                f"{self.directory}/times.json: not there; nothing needs it but a table of the "
                "report, and a kill may have kept it from being written"
            )
        for path in check.under(self.directory):
            if path.rpartition("/")[2].startswith("transcripts-"):
                self._transcripts(path)

    def _measured(self) -> set[str]:
        """List the splits with metrics."""
        names = self.check_.names(self.directory)
        return {n[len("metrics-") : -len(".json")] for n in names if n.startswith("metrics-")}

    # Playing

    def _split(self, split: str) -> None:
        check, directory = self.check_, self.run.rollouts(self.number, split)
        metrics_path = self.run.metrics(self.number, split)
        is_committed = f"{directory}/{MANIFEST}" in check.present
        expects_metrics = is_committed and self._is_measured(split)
        metrics = check.document(
            metrics_path,
            demanded_by=f"{directory}/{MANIFEST}" if expects_metrics else None,
            # The last test may just have been played, and running again measures it.
            derived=not self.is_swapped,
        )
        has_metrics = metrics_path in check.present
        intervals_path = self.run.intervals(self.number, split)
        intervals = check.document(
            intervals_path,
            demanded_by=metrics_path if has_metrics and not may_choose(split) else None,
            derived=not self.is_swapped,
        )
        demanded = metrics_path if isinstance(metrics, dict) and "rollouts" in metrics else None
        if demanded is None and split == TRAIN and self._has_dataset():
            demanded = "the dataset"
        split_manifest = check.manifest(directory, demanded_by=demanded)
        shards = {
            name: check.manifest(directory, name)
            for name in check.names(directory)
            if MANIFEST_NAME.fullmatch(name) and name != MANIFEST
        }
        plan = check.document(
            f"{directory}/plan.json",
            demanded_by=f"{directory}/{MANIFEST}" if split_manifest or shards else None,
        )
        for manifest in shards.values():
            if manifest is not None:
                self._shard(manifest, plan, self._players(split))
                self._opponents(manifest, split)
        if split_manifest is not None:
            self._split_manifest(split_manifest, shards, plan)
            self._metrics(metrics_path, metrics, split_manifest)
            self._metrics(intervals_path, intervals, split_manifest)

    def _is_measured(self, split: str) -> bool:
        """Return whether the split must have metrics by now: results of later stages are there."""
        if split == TEST:
            return self._must_be_tested()
        if split == TRAIN:
            return self._has_dataset() and self.is_swapped
        return isinstance(self.models, dict) and self.models.get("promotion") is not None

    def _must_be_tested(self) -> bool:
        try:
            run_shown = self.check_.shown
            is_due = self.is_swapped or self.number == run_shown.last
            return is_due and self.number in run_shown.tested
        except StoreError:
            return False  # run.json or an opening is damaged, which is said

    def _has_dataset(self) -> bool:
        return bool(self.check_.under(f"{self.directory}/datasets"))

    def _shard(self, manifest: Manifest, plan: Any, players: str | None) -> None:
        check, place = self.check_, f"{manifest.directory}/{manifest.name}"
        self.epoch = max(self.epoch, manifest.epoch)
        check.files_of(manifest)
        if isinstance(plan, dict):
            plan_digest, made_from = plan.get("plan_digest"), manifest.inputs.get("plan")
            check.compare(place, "made from another plan.json", plan_digest, made_from)
        if players is not None:
            fault = "played by other models than those on record"
            check.compare(place, fault, players, manifest.inputs.get("models"))

    def _opponents(self, manifest: Manifest, split: str) -> None:
        """Compare the earlier models of a shard with those on record, too."""
        check, place = self.check_, f"{manifest.directory}/{manifest.name}"
        earlier_paths = [self.run.models(number) for number in range(self.number)]
        if split != TRAIN or check.since or any(path in check.problems for path in earlier_paths):
            return
        try:
            run_shown = check.shown
            served_models = [
                run_shown.first_models,
                *(_models(check.document(path)) for path in earlier_paths),
            ]
            expected = name_opponents(check.settings, served_models)
        except (StoreError, ValueError, KeyError):
            return  # run.json is damaged, which is said, or of a version with other settings
        if run_shown.record.forked_from is not None:
            return  # the settings may not be those with which the shard was played
        fault, made_from = "played against other earlier models", manifest.inputs.get("opponents")
        check.compare(place, fault, digest(expected) if expected else None, made_from)

    def _players(self, split: str) -> str | None:
        """Digest the names of the models of a split; None where they are not known."""
        models_path = self._before
        if may_choose(split) and self._before is not None and self.course is not None:
            # The provers that were the worst play the last test of an attack by training.
            models_path = (
                self.run.models(self.course.worst_step - 1) if self.course.worst_step else None
            )
        if models_path is None or models_path in self.check_.problems:
            return None
        document = self.check_.document(models_path)
        models = _models(document)
        if not models:
            return None
        if split == CANDIDATE:
            if None in self.jobs.values():
                return None
            jobs = self.jobs.items()
            models |= {group: job.model for group, job in jobs if job and job.succeeded}
        return digest(models)

    def _split_manifest(
        self, split_manifest: Manifest, shards: Mapping[str, Manifest | None], plan: Any
    ) -> None:
        """Compare the shards named by a split with its plan."""
        check, place = self.check_, f"{split_manifest.directory}/{split_manifest.name}"
        self.epoch = max(self.epoch, split_manifest.epoch)
        names = shards_of(split_manifest)
        for shard in names:
            name = shard_manifest(shard)
            manifest = shards.get(name) or check.manifest(
                split_manifest.directory, name, demanded_by=place
            )
            if manifest is not None:
                path, named_digest = (
                    f"{split_manifest.directory}/{name}",
                    split_manifest.inputs[f"shard/{shard}"],
                )
                fault = f"not the shard that {place} names"
                check.compare(path, fault, named_digest, manifest.digest)
        whole = [shards.get(shard_manifest(shard)) for shard in names]
        if all(whole):
            for table, rows in split_manifest.rows.items():
                row_count = sum(shard.rows.get(table, 0) for shard in whole if shard)
                fault = f"wrong number of rows of {table}"
                check.compare(place, fault, row_count, rows)
        if isinstance(plan, dict):
            shard_count = -(-plan["episodes"] // plan["episodes_per_shard"])
            check.compare(place, "another number of shards", shard_count, len(names))

    def _metrics(self, path: str, metrics: Any, split_manifest: Manifest) -> None:
        check = self.check_
        if (
            not isinstance(metrics, dict)
            or f"{split_manifest.directory}/{split_manifest.name}" in check.problems
        ):
            return
        made_of, committed_digest = (
            metrics.get("rollouts"),
            split_manifest.extra.get("canonical_digest"),
        )
        if made_of is not None:
            check.compare(path, "metrics of other rollouts", committed_digest, made_of)
        if "problems_left_out" in metrics:
            check.document(f"{self.run.root}/left_out.json", demanded_by=path)

    def _tests_of_course(self, split: str) -> None:
        """Compare the figures of an attack by training with its tests."""
        check, path = self.check_, self.run.metrics(self.number, split)
        metrics = check.document(path)
        made_of = metrics.get("tests") if isinstance(metrics, dict) else None
        for step, digest_then in (made_of or {}).items():
            tests = check.manifest(self.run.rollouts(int(step), TEST), demanded_by=path)
            if tests is not None:
                now = tests.extra.get("canonical_digest")
                check.compare(path, f"of other tests than those of {step}", now, digest_then)

        untrained = metrics.get("untrained_rollouts") if isinstance(metrics, dict) else None
        if untrained is not None:
            check.document(course_path(self.run, self.number), demanded_by=path)
            first = check.manifest(self.run.rollouts(0, split), demanded_by=path)
            if first is not None:
                now = first.extra.get("canonical_digest")
                fault = "of another test than that before any training"
                check.compare(path, fault, now, untrained)

    def _read_course(self) -> CourseEnd | None:
        """Read the end of an attack's course here; None if it goes on or its file is damaged."""
        path = course_path(self.run, self.number)
        if self.check_.document(path) is None:
            return None
        return self.check_.read(path, lambda: read_course(self.run, self.number))

    def _transcripts(self, path: str) -> None:
        """The episodes for reading, and the file with their checksum."""
        check = self.check_
        is_checksum = path.endswith(CHECKSUM_SUFFIX)
        data_path = path.removesuffix(CHECKSUM_SUFFIX)
        checksum = data_path + CHECKSUM_SUFFIX
        check.known |= {data_path, checksum}
        remedy = "restore the file from a copy, or delete both: the episodes stand in the rollouts"
        if is_checksum and data_path not in check.present:
            check.lacks(data_path, f"the file of {checksum}", remedy, derived=True)
        elif not is_checksum and checksum not in check.present:
            check.lacks(checksum, f"the checksum of {data_path}", remedy, derived=True)
        elif not is_checksum and check.deep:
            sha256 = _sum_of(check.run.store.get(checksum), data_path.rpartition("/")[2])
            if sha256 is None:
                expected = "a line of sha256sum"
                check.add(checksum, "damaged", expected, "another", remedy, derived=True)
                return
            with as_local(check.run.store, data_path) as file:
                actual = measure_file(file)[1]
            if actual != sha256:
                check.add(data_path, "damaged", f"SHA-256 {sha256}", actual, remedy, derived=True)

    # Training

    def _read_jobs(self) -> dict[str, JobRecord | None]:
        """Read the jobs of the iteration by group; None for one in damage."""
        check, folder = self.check_, f"{self.directory}/jobs"
        paths = [f"{folder}/{name}" for name in check.names(folder) if name.endswith(".json")]

        def read(path: str) -> JobRecord | None:
            return check.read(path, lambda: read_job(self.run, path))

        return {Path(path).stem: read(path) for path in paths}

    def _dataset(self, group: str) -> None:
        check, directory = self.check_, self.run.dataset(self.number, group)
        path = self.run.job(self.number, group)
        is_begun = path in check.present
        demanded = (path if is_begun else self.run.models(self.number)) if self.is_swapped else None
        manifest = check.manifest(directory, demanded_by=demanded)
        if manifest is None:
            return
        self.epoch = max(self.epoch, manifest.epoch)
        check.files_of(manifest)
        for name, made_from in manifest.inputs.items():
            self._made_from(manifest, name, made_from)
        if not is_begun and self.is_swapped:
            check.lacks(path, f"the job of the dataset in {directory}")
        if (job := self.jobs.get(group)) is not None:
            committed_digest = manifest.extra.get("digest")
            check.compare(path, "the job of another dataset", committed_digest, job.dataset_digest)

    def _made_from(self, manifest: Manifest, name: str, made_from: str) -> None:
        """Compare one of the rollouts behind a dataset with its digest there."""
        kind, _, number = name.partition("/")
        if kind != "rollouts" or not number.isdigit():
            return
        place = f"{manifest.directory}/{manifest.name}"
        source = self.run.rollouts(int(number), TRAIN)
        if f"{source}/{MANIFEST}" in self.check_.problems:
            return
        rollouts = self.check_.manifest(source, demanded_by=place)
        if rollouts is not None:
            committed_digest = rollouts.extra.get("canonical_digest")
            fault = f"made from other rollouts than {source}"
            self.check_.compare(place, fault, committed_digest, made_from)

    def _swap(self) -> None:
        """Compare the models on record with the models of jobs, and with those before."""
        check, path = self.check_, self.run.models(self.number)
        if self.models is None:
            return
        groups = self.models.get("groups") if isinstance(self.models, dict) else None
        if not isinstance(groups, dict) or len(_models(self.models)) != len(groups):
            check.add(path, "damaged", "an object with groups", "another document")
            return
        earlier_models = {}
        if self._before is not None and self._before not in check.problems:
            earlier_models = _models(check.document(self._before))
        candidates = (self.models.get("promotion") or {}).get("candidates") or {}
        for group, model in [*self.models["groups"].items(), *candidates.items()]:
            if model.get("from_run") is not None or model.get("trained_in") is None:
                continue
            if model["trained_in"] == self.number:
                self._trained(group, model)
            elif group in earlier_models:
                fault = f"{group} goes on with another model"
                check.compare(path, fault, earlier_models[group], model["model"])

    def _trained(self, group: str, model: Mapping[str, Any]) -> None:
        check, path = self.check_, self.run.models(self.number)
        if group not in self.jobs:
            expected = f"the job {model.get('job_id')} that {path} names"
            check.lacks(self.run.job(self.number, group), expected)
            return
        job = self.jobs[group]
        if job is not None:
            model_of_job = f"{job.model} of job {job.id}"
            model_on_record = f"{model['model']} of job {model.get('job_id')}"
            fault = f"{group} has another model than its job made"
            check.compare(path, fault, model_of_job, model_on_record)


def _models(document: Any) -> dict[str, Any]:
    """Names of models by group."""
    try:
        return {group: model["model"] for group, model in document["groups"].items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def _sum_of(content: bytes, name: str) -> str | None:
    """The SHA-256 in a file as sha256sum writes it."""
    match = re.fullmatch(rb"([0-9a-f]{64})  (.+)\n", content)
    return match[1].decode() if match and match[2].decode(errors="replace") == name else None
