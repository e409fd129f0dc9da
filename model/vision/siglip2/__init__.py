"""SigLIP 2: SigLIP's layers, trained otherwise; published in two layouts."""
