# The cluster and its node pools. Its control plane is reached through the DNS endpoint, where IAM
# controls access; it has no IP address that could be listed or scanned.

resource "google_container_cluster" "parcel" {
  name                     = "parcel"
  location                 = var.zone
  network                  = google_compute_network.parcel.id
  subnetwork               = google_compute_subnetwork.nodes.id
  deletion_protection      = var.deletion_protection
  initial_node_count       = 1
  remove_default_node_pool = true

  # Without it Kubernetes accepts NetworkPolicies and enforces none of them.
  datapath_provider = "ADVANCED_DATAPATH"

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  private_cluster_config {
    enable_private_nodes = true
  }

  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true
    }
    ip_endpoints_config {
      enabled = false
    }
  }

  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  addons_config {
    ray_operator_config {
      enabled = true
    }
  }

  release_channel {
    channel = "REGULAR"
  }

  # For the default pool, which exists for a minute while the cluster is made.
  node_config {
    service_account = google_service_account.nodes.email
  }

  lifecycle {
    ignore_changes = [node_config]
  }

  depends_on = [
    google_project_iam_member.nodes,
    google_artifact_registry_repository_iam_member.nodes,
  ]
}

resource "google_container_node_pool" "system" {
  name               = "system"
  cluster            = google_container_cluster.parcel.id
  initial_node_count = 1

  autoscaling {
    min_node_count = 1
    max_node_count = var.system.max_nodes
  }

  node_config {
    machine_type    = var.system.machine_type
    disk_size_gb    = var.disk_gb
    disk_type       = "pd-balanced"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    labels          = { parcel-pool = "system" }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

resource "google_container_node_pool" "cpu" {
  name               = "cpu"
  cluster            = google_container_cluster.parcel.id
  initial_node_count = 0

  autoscaling {
    min_node_count = 0
    max_node_count = var.cpu.max_nodes
  }

  node_config {
    machine_type    = var.cpu.machine_type
    spot            = var.spot
    disk_size_gb    = var.disk_gb
    disk_type       = "pd-balanced"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    labels          = { parcel-pool = "cpu" }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

resource "google_container_node_pool" "gpu" {
  count = var.gpu.max_nodes > 0 ? 1 : 0

  name               = "gpu"
  cluster            = google_container_cluster.parcel.id
  initial_node_count = 0

  autoscaling {
    min_node_count = 0
    max_node_count = var.gpu.max_nodes
  }

  node_config {
    machine_type    = var.gpu.machine_type
    spot            = var.spot
    disk_size_gb    = var.disk_gb
    disk_type       = "pd-balanced"
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    labels          = { parcel-pool = "gpu" }

    guest_accelerator {
      type  = var.gpu.accelerator
      count = var.gpu.gpus_per_node

      # CUDA 13 needs a newer driver than the default of many GKE versions.
      gpu_driver_installation_config {
        gpu_driver_version = "LATEST"
      }
    }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}

# GKE provides the hosts of a slice as one pool, all or none.
resource "google_container_node_pool" "tpu" {
  count = var.tpu.max_slices

  name               = "tpu-${count.index}"
  cluster            = google_container_cluster.parcel.id
  initial_node_count = 0

  autoscaling {
    min_node_count = 0
    max_node_count = var.tpu.hosts_per_slice
  }

  dynamic "placement_policy" {
    for_each = var.tpu.hosts_per_slice > 1 ? [var.tpu.topology] : []

    content {
      type         = "COMPACT"
      tpu_topology = placement_policy.value
    }
  }

  node_config {
    machine_type    = var.tpu.machine_type
    spot            = var.spot
    disk_size_gb    = var.disk_gb
    service_account = google_service_account.nodes.email
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
    labels          = { parcel-pool = "tpu" }

    workload_metadata_config {
      mode = "GKE_METADATA"
    }
  }
}
