variable "project" {
  description = "Id of the Google Cloud project."
  type        = string
}

variable "region" {
  description = "Region of the bucket, the images and the cluster: bytes that leave it cost money."
  type        = string
}

variable "zone" {
  description = "Zone of the nodes, in the region; one that has the GPUs or TPUs asked for."
  type        = string

  validation {
    condition     = startswith(var.zone, "${var.region}-")
    error_message = "zone must lie in the region, such as us-central1-a in us-central1."
  }
}

variable "bucket" {
  description = "Name of the bucket that holds the store; bucket names are unique in the world."
  type        = string
}

variable "postgres_digest" {
  description = "Digest of the database's image, postgres:17; docs/howto/cloud.md tells how to get it."
  type        = string

  validation {
    condition     = can(regex("^sha256:[0-9a-f]{64}$", var.postgres_digest))
    error_message = "postgres_digest must be sha256: and 64 hexadecimal digits."
  }
}

variable "store_prefix" {
  description = "Folder of the store in the bucket."
  type        = string
  default     = "studies"
}

variable "internet" {
  description = "Let pods reach the internet, for alerts to Slack or by mail; nobody reaches them."
  type        = bool
  default     = false
}

variable "deployers" {
  description = "Who may act as the deployer, such as user:ada@example.org."
  type        = list(string)
  default     = []
}

variable "deletion_protection" {
  description = "Refuse to destroy the cluster. The bucket is protected whatever this says."
  type        = bool
  default     = true
}

variable "disk_gb" {
  description = "Boot disk of every node; GKE leaves 235 GiB of 400 GB to pods, of which one takes 200."
  type        = number
  default     = 400
}

variable "spot" {
  description = "Take spare machines for the CPU, GPU and TPU pools: cheaper, and taken back at any moment."
  type        = bool
  default     = false
}

variable "system" {
  description = "Nodes of the Prefect server, its database and worker, Ray's head and the studies' own pods."
  type = object({
    machine_type = optional(string, "e2-standard-8")
    max_nodes    = optional(number, 3)
  })
  default = {}
}

variable "cpu" {
  description = "Nodes of Ray's CPU workers, one pod each; the pod must fit beside GKE's own."
  type = object({
    machine_type   = optional(string, "n2-standard-16")
    max_nodes      = optional(number, 4)
    pod_cpus       = optional(number, 14)
    pod_memory_gib = optional(number, 52)
  })
  default = {}
}

variable "gpu" {
  description = "Nodes of Ray's GPU workers, one pod each; none where max_nodes is 0."
  type = object({
    machine_type   = optional(string, "a2-highgpu-1g")
    accelerator    = optional(string, "nvidia-tesla-a100")
    gpus_per_node  = optional(number, 1)
    max_nodes      = optional(number, 0)
    pod_cpus       = optional(number, 10)
    pod_memory_gib = optional(number, 70)
  })
  default = {}
}

variable "tpu" {
  description = "TPU slices of Ray's TPU workers, a node pool each and a pod per host; none where max_slices is 0."
  type = object({
    machine_type    = optional(string, "ct5lp-hightpu-4t")
    accelerator     = optional(string, "tpu-v5-lite-podslice")
    topology        = optional(string, "2x2")
    hosts_per_slice = optional(number, 1)
    chips_per_host  = optional(number, 4)
    max_slices      = optional(number, 0)
    pod_cpus        = optional(number, 100)
    pod_memory_gib  = optional(number, 160)
  })
  default = {}

  validation {
    condition = var.tpu.hosts_per_slice * var.tpu.chips_per_host == (
      tonumber(split("x", var.tpu.topology)[0]) * tonumber(split("x", var.tpu.topology)[1])
      * try(tonumber(split("x", var.tpu.topology)[2]), 1)
    )
    error_message = "hosts_per_slice x chips_per_host must be the chips of the topology, such as 1 x 4 for 2x2."
  }
}
