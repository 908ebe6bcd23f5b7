"""What makes the notebooks a course: the ledger of statements and their proofs."""
