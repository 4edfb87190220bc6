"""Evidence bundles: a run with its report, records, certificates and witnesses as one file that can be signed
and checked.

`make` of holdfast.evidence.bundle writes one, holdfast.evidence.signature signs it, and
holdfast.evidence.bundle_verification checks one.
"""
