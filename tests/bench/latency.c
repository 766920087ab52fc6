/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * latency ADDRESS PORT keep|new SECONDS: HTTP requests one at a time, on one connection or each on a new one.
 *
 * Prints how many were answered, and the median and the 99th percentile of how long one took, in microseconds; with
 * `new` from before connect() on.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MOST 1000000
#define END "ok\n" /* what the server's body is */

static double times[MOST];
static struct sockaddr_in server = { .sin_family = AF_INET };

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int dial(void)
{
	struct timeval patience = { 10, 0 };
	int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof(server)))
		die("connect");
	return fd;
}

static void ask(int fd, const char *request)
{
	char answer[4096];
	size_t got = 0, end = strlen(END);
	ssize_t n;

	if (send(fd, request, strlen(request), 0) < 0)
		die("send");
	while (got < end || memcmp(answer + got - end, END, end)) {
		n = recv(fd, answer + got, sizeof(answer) - got, 0);
		if (n <= 0)
			die("no answer");
		got += n;
	}
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	int n = 0, fresh, fd = -1;
	const char *request;
	double begin, end;

	if (argc != 5 || inet_pton(AF_INET, argv[1], &server.sin_addr) != 1) {
		fprintf(stderr, "usage: latency ADDRESS PORT keep|new SECONDS\n");
		return 2;
	}
	server.sin_port = htons(atoi(argv[2]));
	fresh = !strcmp(argv[3], "new");
	request = fresh ? "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
			: "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
	if (!fresh)
		fd = dial();
	end = now() + atof(argv[4]);
	while ((begin = now()) < end && n < MOST) {
		if (fresh)
			fd = dial();
		ask(fd, request);
		times[n++] = now() - begin;
		if (fresh)
			close(fd);
	}
	if (!n)
		return 1;
	qsort(times, n, sizeof(*times), compare);
	printf("%d %.2f %.2f\n", n, times[n / 2] * 1e6, times[n - 1 - n / 100] * 1e6);
	return 0;
}
