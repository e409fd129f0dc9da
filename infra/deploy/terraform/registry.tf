# Image repositories: ours, and a mirror of Docker Hub, from which nodes get PostgreSQL's image
# without internet access.

resource "google_artifact_registry_repository" "images" {
  repository_id = "parcel"
  location      = var.region
  format        = "DOCKER"
  description   = "The image of all roles."
  depends_on    = [google_project_service.used]
}

resource "google_artifact_registry_repository" "docker_hub" {
  repository_id = "docker-hub"
  location      = var.region
  format        = "DOCKER"
  description   = "Copies of Docker Hub's images, fetched when first asked for."
  mode          = "REMOTE_REPOSITORY"

  remote_repository_config {
    docker_repository {
      public_repository = "DOCKER_HUB"
    }
  }

  depends_on = [google_project_service.used]
}
