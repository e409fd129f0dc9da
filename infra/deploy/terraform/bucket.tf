# The store. It needs no object versions: a write names the generation that it replaces.

resource "google_storage_bucket" "store" {
  name                        = var.bucket
  location                    = var.region
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  versioning {
    enabled = false
  }

  # No soft delete: resumable checkpoints are replaced often, and each would cost a week more.
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

  # Deletes progress of trainings that were never resumed. `parcel gc` deletes all the rest.
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
