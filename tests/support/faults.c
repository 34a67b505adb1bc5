/* Counts the calls of a process that change a file, or that ask a server, and spoils one of them.

   Loaded by LD_PRELOAD.  Nothing happens before fault_arm(), nor in a program that the process
   runs.  The plan is a file that the test shares with the process: see tests/support/faults.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATH_SIZE = 512, CALLS = 8192 };

/* Faults; each is a letter in tests/support/faults.py. */
enum {
    FAIL = 'f',      /* EIO, of a connection ECONNRESET */
    FULL = 'u',      /* ENOSPC for all that needs room, from this call on */
    KILL = 'k',      /* SIGKILL before the call */
    SHORT = 's',     /* half of the bytes are written */
    AGAIN = 'a',     /* EINTR */
    INTERRUPT = 'i', /* SIGINT before the call */
};

struct plan {
    int at;    /* the number of the call, from 0; -1 for none */
    int fault;
    atomic_int count;
    char path[PATH_SIZE]; /* of the call that was spoiled */
    char calls[CALLS];    /* a letter for each */
};

static struct plan *plan;

static void disarm(void) { plan = NULL; }

int fault_arm(const char *path)
{
    int file = open(path, O_RDWR);
    void *found = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    pthread_atfork(NULL, NULL, disarm);
    plan = found == MAP_FAILED ? NULL : found;
    return plan ? 0 : -1;
}

static int needs_room(int call) { return strchr("wofmdl", call) != NULL; }
static int is_connection(int call) { return call == 'c' || call == 't'; }
static int writes(int call) { return call == 'w' || call == 't'; }
static int waits(int call) { return writes(call) || strchr("osfc", call) != NULL; }

/* Count a call; return 0 if it is to be made, 1 if in part, or -1 with errno if it fails. */
static int met(int call, int file, const char *path)
{
    if (!plan)
        return 0;
    int number = atomic_fetch_add(&plan->count, 1);
    if (number < CALLS)
        plan->calls[number] = call;
    if (plan->fault == FULL && plan->at >= 0 && number > plan->at && needs_room(call)) {
        errno = ENOSPC;
        return -1;
    }
    if (number != plan->at)
        return 0;
    if (path)
        snprintf(plan->path, PATH_SIZE, "%s", path);
    else {
        char name[64];
        snprintf(name, sizeof name, "/proc/self/fd/%d", file);
        if (readlink(name, plan->path, PATH_SIZE - 1) < 0)
            plan->path[0] = 0;
    }
    switch (plan->fault) {
    case FAIL:
        if (is_connection(call))
            shutdown(file, SHUT_RDWR);
        errno = call == 'c' ? ECONNREFUSED : call == 't' ? ECONNRESET : EIO;
        return -1;
    case FULL:
        errno = ENOSPC;
        return needs_room(call) ? -1 : 0;
    case KILL:
        kill(getpid(), SIGKILL);
        pause();
        return -1;
    case SHORT:
        return writes(call);
    case AGAIN:
        errno = EINTR;
        return waits(call) ? -1 : 0;
    case INTERRUPT:
        kill(getpid(), SIGINT);
        return 0;
    }
    return 0;
}

/* Return the letter of a write to a file or to a server; 0 for one to a terminal, a pipe, or
   between the threads of the process. */
static int written(int file)
{
    struct stat about;
    if (!plan || fstat(file, &about))
        return 0;
    if (S_ISREG(about.st_mode))
        return 'w';
    struct sockaddr_un peer;
    socklen_t size = sizeof peer;
    if (!S_ISSOCK(about.st_mode) || getpeername(file, (struct sockaddr *)&peer, &size))
        return 0;
    return peer.sun_family != AF_UNIX || size > sizeof(sa_family_t) ? 't' : 0;
}

static int regular(int file)
{
    struct stat about;
    return plan && !fstat(file, &about) && S_ISREG(about.st_mode);
}

#define REAL(name) ((__typeof__(&name))real(#name, &name##_found))

static void *real(const char *name, void **found)
{
    if (!*found)
        *found = dlsym(RTLD_NEXT, name);
    return *found;
}

/* A call that is made or fails. */
#define WRAP(type, name, parameters, arguments, call, file, path) \
    static void *name##_found; \
    type name parameters \
    { \
        int letter = call; \
        if (letter && met(letter, file, path) < 0) \
            return (type)-1; \
        return REAL(name) arguments; \
    }

/* A call that writes ``size`` bytes, which a fault may change. */
#define WRAP_WRITE(name, parameters, arguments) \
    static void *name##_found; \
    ssize_t name parameters \
    { \
        int letter = written(file); \
        int how = letter ? met(letter, file, NULL) : 0; \
        if (how < 0) \
            return -1; \
        if (how) \
            size = (size + 1) / 2; \
        return REAL(name) arguments; \
    }

WRAP_WRITE(write, (int file, const void *bytes, size_t size), (file, bytes, size))
WRAP_WRITE(pwrite, (int file, const void *bytes, size_t size, off_t at), (file, bytes, size, at))
WRAP_WRITE(pwrite64, (int file, const void *bytes, size_t size, off64_t at),
           (file, bytes, size, at))
WRAP_WRITE(send, (int file, const void *bytes, size_t size, int flags), (file, bytes, size, flags))

/* Calls with several pieces, of which a short one makes the first. */
static void *writev_found, *sendmsg_found;

ssize_t writev(int file, const struct iovec *pieces, int count)
{
    int letter = written(file);
    int how = letter ? met(letter, file, NULL) : 0;
    return how < 0 ? -1 : REAL(writev)(file, pieces, how && count > 1 ? 1 : count);
}

ssize_t sendmsg(int file, const struct msghdr *message, int flags)
{
    int letter = written(file);
    int how = letter ? met(letter, file, NULL) : 0;
    struct msghdr sent = *message;
    if (how && sent.msg_iovlen > 1)
        sent.msg_iovlen = 1;
    return how < 0 ? -1 : REAL(sendmsg)(file, &sent, flags);
}

WRAP(int, fsync, (int file), (file), regular(file) ? 's' : 0, file, NULL)
WRAP(int, fdatasync, (int file), (file), regular(file) ? 's' : 0, file, NULL)
WRAP(int, ftruncate, (int file, off_t size), (file, size), regular(file) ? 'f' : 0, file, NULL)
WRAP(int, ftruncate64, (int file, off64_t size), (file, size), regular(file) ? 'f' : 0, file, NULL)
WRAP(int, rename, (const char *from, const char *to), (from, to), 'r', -1, to)
WRAP(int, link, (const char *from, const char *to), (from, to), 'l', -1, to)
WRAP(int, unlink, (const char *path), (path), 'n', -1, path)
WRAP(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), 'n', -1, path)
WRAP(int, rmdir, (const char *path), (path), 'n', -1, path)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), 'd', -1, path)
WRAP(int, connect, (int file, const struct sockaddr *address, socklen_t size),
     (file, address, size), plan ? 'c' : 0, file, NULL)

static int shared(int file, int protection, int flags)
{
    return file >= 0 && flags & MAP_SHARED && protection & PROT_WRITE && regular(file) ? 'm' : 0;
}

WRAP(void *, mmap, (void *at, size_t size, int protection, int flags, int file, off_t offset),
     (at, size, protection, flags, file, offset), shared(file, protection, flags), file, NULL)
WRAP(void *, mmap64, (void *at, size_t size, int protection, int flags, int file, off64_t offset),
     (at, size, protection, flags, file, offset), shared(file, protection, flags), file, NULL)

/* An open for writing, but not of a device. */
static int opened(const char *path, int flags)
{
    return (flags & (O_ACCMODE | O_CREAT)) && strncmp(path, "/dev/", 5) ? 'o' : 0;
}

static mode_t mode_of(int flags, va_list more)
{
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
}

#define WRAP_OPEN(name, parameters, arguments) \
    static void *name##_found; \
    int name parameters \
    { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = mode_of(flags, more); \
        va_end(more); \
        int letter = plan ? opened(path, flags) : 0; \
        if (letter && met(letter, -1, path) < 0) \
            return -1; \
        return REAL(name) arguments; \
    }

WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
WRAP_OPEN(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
