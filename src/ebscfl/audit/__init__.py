"""What a curious party can do with its own view of a round, measured for every protocol.

views         what a party has seen; attacks get this and nothing else
record        plays rounds, cuts views out of them, scores estimates against the truth
plain, decode, spectral, collusion, differencing, kdc_view, sealed_uploads    the attacks
evidence      test statistics over many rounds        inversion, pictures    from updates back to images
run           the whole audit                         page, leakage          the report
"""

from ebscfl.audit.collusion import collusion
from ebscfl.audit.decode import decode
from ebscfl.audit.differencing import differencing
from ebscfl.audit.plain import read
from ebscfl.audit.record import Finding, Record, Truth, example_truth, judge, kdc_view, play, server_view
from ebscfl.audit.run import AuditReport, AuditSettings, run_audit
from ebscfl.audit.spectral import spectral
from ebscfl.audit.views import Estimate, View

__all__ = [
    "AuditReport",
    "AuditSettings",
    "Estimate",
    "Finding",
    "Record",
    "Truth",
    "View",
    "collusion",
    "decode",
    "differencing",
    "example_truth",
    "judge",
    "kdc_view",
    "play",
    "read",
    "run_audit",
    "server_view",
    "spectral",
]
