// LD_PRELOAD: every way of reading a regular file waits $READ_DELAY_US microseconds first, as on a busy network file
// system, and is counted. reads_so_far() is for a program that looks it up; $READ_COUNT prints the number at the end.
// Covers read, pread, readv, preadv, preadv2 with their 64-bit names, and the mapping of a file, which counts once.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_long count;
static long delay = -1;

long reads_so_far(void) {
    return count;
}

static void wait_for(int fd) {
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return;
    if (delay < 0) {
        const char* text = getenv("READ_DELAY_US");
        delay = text ? atol(text) : 0;
    }
    ++count;
    if (delay == 0) return;
    struct timespec time = {delay / 1000000, delay % 1000000 * 1000};
    while (nanosleep(&time, &time) != 0) {
    }
}

#define WRAP(result, name, parameters, arguments)                        \
    result name parameters {                                             \
        static result(*next) parameters;                                 \
        if (!next) next = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
        wait_for(fd);                                                    \
        return next arguments;                                           \
    }

WRAP(ssize_t, read, (int fd, void* out, size_t size), (fd, out, size))
WRAP(ssize_t, pread, (int fd, void* out, size_t size, off_t at), (fd, out, size, at))
WRAP(ssize_t, pread64, (int fd, void* out, size_t size, off64_t at), (fd, out, size, at))
WRAP(ssize_t, readv, (int fd, const struct iovec* out, int n), (fd, out, n))
WRAP(ssize_t, preadv, (int fd, const struct iovec* out, int n, off_t at), (fd, out, n, at))
WRAP(ssize_t, preadv64, (int fd, const struct iovec* out, int n, off64_t at), (fd, out, n, at))
WRAP(ssize_t, preadv2, (int fd, const struct iovec* out, int n, off_t at, int flags), (fd, out, n, at, flags))
WRAP(ssize_t, preadv64v2, (int fd, const struct iovec* out, int n, off64_t at, int flags), (fd, out, n, at, flags))
WRAP(void*, mmap, (void* to, size_t size, int access, int flags, int fd, off_t at), (to, size, access, flags, fd, at))
WRAP(void*, mmap64, (void* to, size_t size, int access, int flags, int fd, off64_t at),
     (to, size, access, flags, fd, at))

__attribute__((destructor)) static void print(void) {
    if (getenv("READ_COUNT")) fprintf(stderr, "reads: %ld\n", (long)count);
}
