"""Certificates for the independent checker `holdfast_check`: writing, checking, and comparing with a run's claims.

Nothing in this package is trusted. The checker reads the bytes of a certificate and decides by itself.
"""
