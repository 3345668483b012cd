// Preloaded into the servers of a cluster. A mapped file has the ports of the server that is cut off, for clients and for the bus, or
// zeros: there are no connections between it and other servers, and clients reach it.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_FILES 65536

static const volatile uint16_t *cut;
// The port of this server's bus.
static uint16_t own;
// By file: the port to which this server connected it, or 0.
static uint16_t ports[MAX_FILES];

__attribute__((constructor)) static void map_ports(void) {
    const char *path = getenv("PUNCTUAL_TEST_CUT"), *bus = getenv("PUNCTUAL_TEST_BUS");
    int file = path && bus ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *cut, PROT_READ, MAP_SHARED, file, 0);
    if (mapped == MAP_FAILED) _exit(97);
    close(file);
    own = (uint16_t)atoi(bus);
    cut = mapped;
}

// A server connects only to other servers.
static int is_cut(uint16_t port) {
    return cut[1] && (own == cut[1] || port == cut[0] || port == cut[1]);
}

int connect(int file, const struct sockaddr *address, socklen_t length) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (!next) next = dlsym(RTLD_NEXT, "connect");
    uint16_t port = address->sa_family == AF_INET ? ntohs(((const struct sockaddr_in *)address)->sin_port) : 0;
    if (port && is_cut(port)) {
        errno = ENETUNREACH;
        return -1;
    }
    if (file >= 0 && file < MAX_FILES) ports[file] = port;
    return next(file, address, length);
}

int close(int file) {
    static int (*next)(int);
    if (!next) next = dlsym(RTLD_NEXT, "close");
    if (file >= 0 && file < MAX_FILES) ports[file] = 0;
    return next(file);
}

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout) {
    static int (*next)(int, struct epoll_event *, int, int);
    static uint16_t known;
    if (!next) next = dlsym(RTLD_NEXT, "epoll_wait");
    if (known != cut[1]) {
        known = cut[1];
        for (int file = 0; known && file < MAX_FILES; file++)
            if (ports[file] && is_cut(ports[file])) shutdown(file, SHUT_RDWR);
    }
    return next(epoll, events, most, timeout);
}
