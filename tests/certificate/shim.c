/* Strikes file operations and clocks of every process that is started with it (LD_PRELOAD).

   It looks at operations on files below CERTIFICATE_ROOT, counts them in a page that all processes
   share, and has some of them fail as the page says: the call is not made, and the process gets the
   error. The realtime clock is shifted by what the page says. What it struck, and what was linked,
   renamed or unlinked among the store's records, it writes to CERTIFICATE_LOG, one line each:

     strike NUMBER PID CALL ERRNO PATH
     change NUMBER PID link|unlink PATH     the file itself stays, as CERTIFICATE_LOG.d/NUMBER
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { CREATES = 1, WRITES = 2, READS = 4, LOOKS = 8 };

struct page {           /* as in shim.py */
  uint64_t operations;  /* so far */
  uint64_t number;      /* of the last line of the log */
  int64_t ahead_ns;     /* of the clock */
  uint64_t clock_calls; /* while it is shifted */
  uint64_t from;        /* number of the operation from which on they fail */
  int64_t left;         /* how many are still to fail */
  uint32_t error, kinds;
};

static struct page *page;
static char root[4096], log_path[4096];
static size_t root_size;
static unsigned char ours[65536]; /* descriptors of files below the root */

__attribute__((constructor)) static void load(void) {
  const char *where = getenv("CERTIFICATE_PAGE"), *below = getenv("CERTIFICATE_ROOT");
  const char *log = getenv("CERTIFICATE_LOG");
  if (!where || !below || !log) return;
  int handle = syscall(SYS_openat, AT_FDCWD, where, O_RDWR | O_CLOEXEC);
  if (handle < 0) return;
  void *shared = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, handle, 0);
  syscall(SYS_close, handle);
  snprintf(root, sizeof root, "%s/", below);
  snprintf(log_path, sizeof log_path, "%s", log);
  root_size = strlen(root);
  if (shared != MAP_FAILED) page = shared;
}

static int is_below(const char *path) {
  return page && path && !strncmp(path, root, root_size);
}

static uint64_t write_line(const char *word, const char *call, int error, const char *path) {
  char line[4608];
  uint64_t number = __atomic_add_fetch(&page->number, 1, __ATOMIC_SEQ_CST);
  int pid = syscall(SYS_getpid);
  int size = error ? snprintf(line, sizeof line, "%s %llu %d %s %d %s\n", word,
                              (unsigned long long)number, pid, call, error, path)
                   : snprintf(line, sizeof line, "%s %llu %d %s %s\n", word,
                              (unsigned long long)number, pid, call, path);
  int handle = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  syscall(SYS_write, handle, line, size);
  syscall(SYS_close, handle);
  return number;
}

/* Counts an operation; returns whether it is to fail, with errno set. */
static int fails(int kind, const char *call, const char *path, int handle) {
  uint64_t operation = __atomic_add_fetch(&page->operations, 1, __ATOMIC_SEQ_CST);
  if (!(page->kinds & kind) || operation < page->from || page->left <= 0) return 0;
  if (__atomic_fetch_sub(&page->left, 1, __ATOMIC_SEQ_CST) <= 0) return 0;
  char link[64], name[4096] = "";
  if (!path) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1);
    name[size > 0 ? size : 0] = 0;
  }
  write_line("strike", call, page->error, path ? path : name);
  errno = page->error;
  return 1;
}

static int is_record(const char *path) {
  return strstr(path, "/manifests/") || strstr(path, "/history/") || strstr(path, "/aside/");
}

/* Notes that a record came to be, and keeps its bytes under another name. */
static void note_link(const char *path) {
  char kept[4608];
  int before = errno;
  if (is_below(path) && is_record(path)) {
    uint64_t number = write_line("change", "link", 0, path);
    snprintf(kept, sizeof kept, "%s.d/%llu", log_path, (unsigned long long)number);
    syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, kept, 0);
  }
  errno = before;
}

static void note_unlink(const char *path) {
  int before = errno;
  if (is_below(path) && is_record(path)) write_line("change", "unlink", 0, path);
  errno = before;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static void own(int handle, int is_ours) {
  if (handle >= 0 && handle < (int)sizeof ours) ours[handle] = is_ours;
}

static int is_ours(int handle) {
  return page && handle >= 0 && handle < (int)sizeof ours && ours[handle];
}

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    int below = is_below(path); \
    if (below && fails(flags & O_CREAT ? CREATES : LOOKS, "open", path, -1)) return -1; \
    int handle = real(path, flags, mode); \
    own(handle, below); \
    return handle; \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); \
    va_end(rest); \
    int below = is_below(path); \
    if (below && fails(flags & O_CREAT ? CREATES : LOOKS, "open", path, -1)) return -1; \
    int handle = real(folder, path, flags, mode); \
    own(handle, below); \
    return handle; \
  }
OPENAT(openat)
OPENAT(openat64)

int close(int handle) {
  REAL(close);
  own(handle, 0);
  return real(handle);
}

#define ON_PATH(name, kind, parameters, path, arguments) \
  int name parameters { \
    REAL(name); \
    if (is_below(path) && fails(kind, #name, path, -1)) return -1; \
    return real arguments; \
  }
ON_PATH(mkdir, CREATES, (const char *path, mode_t mode), path, (path, mode))
ON_PATH(stat, LOOKS, (const char *path, struct stat *into), path, (path, into))
ON_PATH(stat64, LOOKS, (const char *path, struct stat64 *into), path, (path, into))
ON_PATH(lstat, LOOKS, (const char *path, struct stat *into), path, (path, into))
ON_PATH(lstat64, LOOKS, (const char *path, struct stat64 *into), path, (path, into))

int link(const char *from, const char *to) {
  REAL(link);
  if (is_below(to) && fails(CREATES, "link", to, -1)) return -1;
  int result = real(from, to);
  if (!result) note_link(to);
  return result;
}

int linkat(int folder, const char *from, int other, const char *to, int flags) {
  REAL(linkat);
  if (is_below(to) && fails(CREATES, "link", to, -1)) return -1;
  int result = real(folder, from, other, to, flags);
  if (!result) note_link(to);
  return result;
}

int rename(const char *from, const char *to) {
  REAL(rename);
  if (is_below(to) && fails(CREATES, "rename", to, -1)) return -1;
  int result = real(from, to);
  if (!result) note_unlink(from), note_link(to);
  return result;
}

int unlink(const char *path) {
  REAL(unlink);
  int result = real(path);
  if (!result) note_unlink(path);
  return result;
}

#define ON_HANDLE(type, name, kind, parameters, arguments) \
  type name parameters { \
    REAL(name); \
    if (is_ours(handle) && fails(kind, #name, NULL, handle)) return -1; \
    return real arguments; \
  }
ON_HANDLE(ssize_t, read, READS, (int handle, void *into, size_t size), (handle, into, size))
ON_HANDLE(ssize_t, pread, READS, (int handle, void *into, size_t size, off_t at), (handle, into, size, at))
ON_HANDLE(ssize_t, pread64, READS, (int handle, void *into, size_t size, off64_t at), (handle, into, size, at))
ON_HANDLE(ssize_t, write, WRITES, (int handle, const void *from, size_t size), (handle, from, size))
ON_HANDLE(ssize_t, pwrite, WRITES, (int handle, const void *from, size_t size, off_t at), (handle, from, size, at))
ON_HANDLE(ssize_t, pwrite64, WRITES, (int handle, const void *from, size_t size, off64_t at), (handle, from, size, at))
ON_HANDLE(ssize_t, writev, WRITES, (int handle, const struct iovec *from, int count), (handle, from, count))
ON_HANDLE(int, fsync, WRITES, (int handle), (handle))
ON_HANDLE(int, fdatasync, WRITES, (int handle), (handle))

static int64_t shift(void) {
  if (!page || !page->ahead_ns) return 0;
  __atomic_add_fetch(&page->clock_calls, 1, __ATOMIC_RELAXED);
  return page->ahead_ns;
}

int clock_gettime(clockid_t clock, struct timespec *into) {
  REAL(clock_gettime);
  int result = real(clock, into);
  if (!result && clock == CLOCK_REALTIME) {
    int64_t ahead = shift();
    int64_t all = into->tv_sec * 1000000000LL + into->tv_nsec + ahead;
    into->tv_sec = all / 1000000000LL;
    into->tv_nsec = all % 1000000000LL;
  }
  return result;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
  REAL(gettimeofday);
  int result = real(into, zone);
  if (!result) into->tv_sec += shift() / 1000000000LL;
  return result;
}

time_t time(time_t *into) {
  REAL(time);
  time_t now = real(NULL);
  if (now != (time_t)-1) now += shift() / 1000000000LL;
  if (into) *into = now;
  return now;
}

/* Waits until a time of the realtime clock: the kernel knows the clock that is not shifted. Without
   this, a clock that is behind has such a wait end at once, and its caller wait again, at full load. */

static struct timespec kernel_time(const struct timespec *until) {
  int64_t all = until->tv_sec * 1000000000LL + until->tv_nsec - page->ahead_ns;
  if (all < 0) all = 0;
  return (struct timespec){all / 1000000000LL, all % 1000000000LL};
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  long a[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(rest, long);
  va_end(rest);
  struct timespec until;
  if (number == SYS_futex && a[3] && page && page->ahead_ns &&
      (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && (a[1] & FUTEX_CLOCK_REALTIME)) {
    until = kernel_time((const struct timespec *)a[3]);
    a[3] = (long)&until;
  }
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
  static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  /* Without a version it would be that of 1999. */
  if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  /* glibc's mark of a condition whose times are of the monotonic clock. */
  if (!page || !page->ahead_ns || (cond->__data.__wrefs & 2)) return real(cond, mutex, until);
  struct timespec shifted = kernel_time(until);
  return real(cond, mutex, &shifted);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
  REAL(sem_timedwait);
  if (!page || !page->ahead_ns) return real(sem, until);
  struct timespec shifted = kernel_time(until);
  return real(sem, &shifted);
}
