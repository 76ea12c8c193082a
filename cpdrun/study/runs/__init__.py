"""What a single run left: its curve, whether it learnt, what it observed and which settings it ignored."""
