"""Evidence bundles: a run with its report, records, certificates and witnesses in one signed file.

`write_contents` of holdfast.evidence.bundle writes one, holdfast.evidence.signature signs it, and
holdfast.evidence.bundle_verification checks one.
"""
