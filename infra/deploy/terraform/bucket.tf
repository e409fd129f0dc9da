# The store. It asks for no object versions: every write names the generation it replaces.

resource "google_storage_bucket" "store" {
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  versioning {
    enabled = false
  }

  # None: resumable checkpoints are replaced all the time, and each would be paid for a week longer.
  soft_delete_policy {
    retention_duration_seconds = 0
  }

  lifecycle_rule {
    condition {
      age = 7
    }
    action {
      type = "AbortIncompleteMultipartUpload"
    }
  }

  # Progress of trainings that nobody went on with. All else is `parcel gc`'s to delete.
  lifecycle_rule {
    condition {
      age            = 60
      matches_prefix = ["${var.store_prefix}/scratch/"]
    }
    action {
      type = "Delete"
    }
  }

  lifecycle {
    prevent_destroy = true
  }

  depends_on = [google_project_service.used]
}
