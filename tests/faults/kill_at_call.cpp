// Kills the process at its n-th call that changes files, to be loaded with LD_PRELOAD: every state that a kill can
// leave on disk is then tried, one after the other. A write counts twice: once before it, once when half of it is done.

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>

namespace {

std::atomic<long> until_kill{0};  // 0: not armed
std::atomic<long> calls{0};

bool is_due() {
    ++calls;
    return until_kill > 0 && --until_kill == 0;
}

void die_if_due() {
    if (is_due()) kill(getpid(), SIGKILL);
}

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list arguments) {
    return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

#define FORWARD(result, name, parameters, ...)                    \
    extern "C" result name parameters {                           \
        static auto* const real = next<result parameters>(#name); \
        die_if_due();                                             \
        return real(__VA_ARGS__);                                 \
    }

#define FORWARD_OPEN(name)                                                 \
    extern "C" int name(const char* path, int flags, ...) {                \
        static auto* const real = next<int(const char*, int, ...)>(#name); \
        va_list arguments;                                                 \
        va_start(arguments, flags);                                        \
        const mode_t mode = mode_of(flags, arguments);                     \
        va_end(arguments);                                                 \
        if ((flags & O_CREAT) != 0) die_if_due();                          \
        return real(path, flags, mode);                                    \
    }

#define FORWARD_OPENAT(name)                                                    \
    extern "C" int name(int folder, const char* path, int flags, ...) {         \
        static auto* const real = next<int(int, const char*, int, ...)>(#name); \
        va_list arguments;                                                      \
        va_start(arguments, flags);                                             \
        const mode_t mode = mode_of(flags, arguments);                          \
        va_end(arguments);                                                      \
        if ((flags & O_CREAT) != 0) die_if_due();                               \
        return real(folder, path, flags, mode);                                 \
    }

FORWARD_OPEN(open)
FORWARD_OPEN(open64)
FORWARD_OPENAT(openat)
FORWARD_OPENAT(openat64)
FORWARD(int, fsync, (int file), file)
FORWARD(int, flock, (int file, int operation), file, operation)
FORWARD(int, ftruncate, (int file, off_t size), file, size)
FORWARD(int, ftruncate64, (int file, off64_t size), file, size)
FORWARD(int, rename, (const char* from, const char* to), from, to)
FORWARD(int, renameat, (int at, const char* from, int there, const char* to), at, from, there, to)
FORWARD(int, link, (const char* from, const char* to), from, to)
FORWARD(int, linkat, (int at, const char* from, int there, const char* to, int flags), at, from, there, to, flags)
FORWARD(int, unlink, (const char* path), path)
FORWARD(int, unlinkat, (int at, const char* path, int flags), at, path, flags)
FORWARD(int, rmdir, (const char* path), path)
FORWARD(int, mkdir, (const char* path, mode_t mode), path, mode)
FORWARD(int, mkdirat, (int at, const char* path, mode_t mode), at, path, mode)

extern "C" ssize_t write(int file, const void* data, size_t size) {
    static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
    die_if_due();
    if (is_due()) {
        (void)!real(file, data, size / 2);
        kill(getpid(), SIGKILL);
    }
    return real(file, data, size);
}

extern "C" ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
    static auto* const real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
    die_if_due();
    return real(file, data, size, offset);
}

// From now on the n-th call ends the process; 0 only counts. Returns the calls since the last time.
extern "C" long kill_at_call(long n) {
    until_kill = n;
    return calls.exchange(0);
}
