"""SigLIP: the tower of PaliGemma."""
