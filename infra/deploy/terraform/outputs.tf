output "kustomization" {
  description = "Kubernetes' side of all this: write it to ../kubernetes/site/kustomization.yaml."
  value = templatefile("${path.module}/kustomization.yaml.tftpl", {
    store           = local.store
    image           = local.image
    postgres        = "${local.registry}/${google_artifact_registry_repository.docker_hub.repository_id}/library/postgres"
    postgres_digest = var.postgres_digest
    workloads       = { for name, account in local.workloads : name => account.email }
    deployer        = google_service_account.deployer.email
    cpu             = var.cpu
    gpu             = var.gpu
    tpu             = var.tpu
  })
}

output "image" {
  description = "Where the image is pushed to; a tag follows."
  value       = local.image
}

output "store" {
  description = "The store, for --store."
  value       = local.store
}

output "credentials" {
  description = "The command that makes kubectl speak to the cluster."
  value       = "gcloud container clusters get-credentials ${google_container_cluster.parcel.name} --location ${var.zone} --project ${var.project} --dns-endpoint"
}

locals {
  registry = "${var.region}-docker.pkg.dev/${var.project}"
  image    = "${local.registry}/${google_artifact_registry_repository.images.repository_id}/parcel"
  store    = "gs://${google_storage_bucket.store.name}/${var.store_prefix}"
}
