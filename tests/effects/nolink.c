/* A file system without hard links, as exFAT and many mounted by FUSE. */
#include <errno.h>

int link(const char *from, const char *to) {
  errno = EPERM;
  return -1;
}

int linkat(int from, const char *name, int to, const char *other, int flags) {
  errno = EPERM;
  return -1;
}
