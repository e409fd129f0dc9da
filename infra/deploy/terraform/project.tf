# Services of the project, and a network whose nodes have no public address: they reach Google's
# services from inside the network, and the internet only if `internet` is set.

resource "google_project_service" "used" {
  for_each = toset([
    "artifactregistry.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "storage.googleapis.com",
  ])

  service            = each.value
  disable_on_destroy = false
}

resource "google_compute_network" "parcel" {
  name                    = "parcel"
  auto_create_subnetworks = false
  depends_on              = [google_project_service.used]
}

resource "google_compute_subnetwork" "nodes" {
  name                     = "parcel-nodes"
  network                  = google_compute_network.parcel.id
  region                   = var.region
  ip_cidr_range            = "10.0.0.0/20"
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = "10.4.0.0/14"
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = "10.8.0.0/20"
  }
}

resource "google_compute_router" "out" {
  count = var.internet ? 1 : 0

  name    = "parcel-out"
  network = google_compute_network.parcel.id
  region  = var.region
}

resource "google_compute_router_nat" "out" {
  count = var.internet ? 1 : 0

  name                               = "parcel-out"
  router                             = google_compute_router.out[0].name
  region                             = var.region
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}
