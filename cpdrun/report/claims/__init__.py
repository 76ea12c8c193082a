"""What papers claim, beside what ran here: `cpdrun report --claims`.

A claim is a yaml file in conf/claims: the paper's words, its threshold, and which cells of which sweep are compared.
The verdict (certified, refuted, open, not asked) is computed from the values of single runs, never written down.
"""

from cpdrun.report.claims.claim import Claim, read_claims
from cpdrun.report.claims.claims_md import write_claims
from cpdrun.report.claims.judgement import Finding, judge

__all__ = ["Claim", "Finding", "judge", "read_claims", "write_claims"]
