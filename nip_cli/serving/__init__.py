"""The commands of `nip` about models: bringing them here, serving them, proving them."""
