/* A file system without locks: Lustre without -o flock, NFS without lockd; NO_FLOCK is the error. */
#include <errno.h>
#include <stdlib.h>

int flock(int file, int how) {
  errno = atoi(getenv("NO_FLOCK"));
  return -1;
}
