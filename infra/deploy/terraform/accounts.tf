# One account for each role, and all of its permissions:
#
#   study     pods that drive and watch runs        objects of the bucket, and its location
#   ray       Ray's workers, which make the steps   objects of the bucket, and its location
#   nodes     the machines themselves               pull images; write logs and metrics
#   deployer  people who release a new image        push images; reach the cluster (its permissions
#                                                   there are Kubernetes' Role parcel-deployer)
#
# The Prefect server, its database, its worker and Ray's head have no Google account.

locals {
  namespace = "parcel"

  # Kubernetes service account of a pod -> the account it acts as.
  workloads = {
    "parcel-study" = google_service_account.study
    "parcel-ray"   = google_service_account.ray
  }
}

resource "google_service_account" "study" {
  account_id   = "parcel-study"
  display_name = "Drives the runs of studies"
  depends_on   = [google_project_service.used]
}

resource "google_service_account" "ray" {
  account_id   = "parcel-ray"
  display_name = "Makes the steps of studies on Ray"
  depends_on   = [google_project_service.used]
}

resource "google_service_account" "nodes" {
  account_id   = "parcel-nodes"
  display_name = "Nodes of the cluster"
  depends_on   = [google_project_service.used]
}

resource "google_service_account" "deployer" {
  account_id   = "parcel-deployer"
  display_name = "Brings out new images"
  depends_on   = [google_project_service.used]
}

resource "google_service_account_iam_member" "workload" {
  for_each = local.workloads

  service_account_id = each.value.name
  role               = "roles/iam.workloadIdentityUser"
  member             = "serviceAccount:${google_container_cluster.parcel.workload_identity_config[0].workload_pool}[${local.namespace}/${each.key}]"
}

resource "google_service_account_iam_member" "deployers" {
  for_each = toset(var.deployers)

  service_account_id = google_service_account.deployer.name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = each.value
}

resource "google_storage_bucket_iam_member" "objects" {
  for_each = local.workloads

  bucket = google_storage_bucket.store.name
  role   = "roles/storage.objectUser"
  member = each.value.member
}

# The location belongs to the bucket, not to its objects, so reading it needs a role of its own.
resource "google_storage_bucket_iam_member" "location" {
  for_each = local.workloads

  bucket = google_storage_bucket.store.name
  role   = "roles/storage.legacyBucketReader"
  member = each.value.member
}

resource "google_project_iam_member" "nodes" {
  project = var.project
  role    = "roles/container.defaultNodeServiceAccount"
  member  = google_service_account.nodes.member
}

resource "google_artifact_registry_repository_iam_member" "nodes" {
  for_each = {
    images     = google_artifact_registry_repository.images
    docker_hub = google_artifact_registry_repository.docker_hub
  }

  location   = each.value.location
  repository = each.value.repository_id
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.nodes.member
}

resource "google_artifact_registry_repository_iam_member" "deployer" {
  location   = google_artifact_registry_repository.images.location
  repository = google_artifact_registry_repository.images.repository_id
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.deployer.member
}

# Just enough for kubectl to reach the cluster's API; the Role parcel-deployer grants the rest.
resource "google_project_iam_custom_role" "connect" {
  role_id     = "parcelConnect"
  title       = "Connect to clusters"
  permissions = ["container.clusters.connect", "container.clusters.get"]
  depends_on  = [google_project_service.used]
}

resource "google_project_iam_member" "deployer" {
  project = var.project
  role    = google_project_iam_custom_role.connect.name
  member  = google_service_account.deployer.member
}
