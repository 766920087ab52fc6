/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * sender KIND DEVICE MAC ADDRESS PORT PORTS FLOWS RATE SECONDS: IPv4 packets to ADDRESS by AF_PACKET.
 *
 * KIND  udp: 46 bytes of payload; syn: a TCP SYN.
 * MAC   of the next hop.
 * PORTS destination ports from PORT on, flow n to PORT + n * STRIDE % PORTS: few flows are spread over many ports.
 * FLOWS how many source addresses and ports: a random one of them each packet, flow n from
 *       10.0.0.1 + n % 65536, port 1024 + n / 65536 (tests/bench/connections.py makes the same); 0: never the same
 *       twice (udp: one after another; syn: at random).
 * RATE  packets a second; 0: all it can.
 *
 * Prints how many it has sent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define PAYLOAD 46
#define STRIDE 7919u /* a prime: each port has its turn */
#define NS 1000000000ull

struct frame {
	struct ether_header eth;
	struct iphdr ip;
	union {
		struct udphdr udp;
		struct tcphdr tcp;
		uint8_t room[sizeof(struct udphdr) + PAYLOAD];
	};
} __attribute__((packed, aligned(2)));

static struct frame frames[BATCH];
static uint64_t state;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * NS + t.tv_nsec;
}

static uint64_t xorshift(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static uint32_t sum(const void *data, size_t len, uint32_t s)
{
	for (const uint8_t *p = data; len > 1; p += 2, len -= 2)
		s += (uint32_t)p[0] << 8 | p[1];
	return s;
}

static uint16_t fold(uint32_t s)
{
	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return htons(~s);
}

/* Source and destination port of flow n, and the checksums that follow from them. */
static void fill(struct frame *f, uint64_t n, int port, int ports)
{
	size_t len = ntohs(f->ip.tot_len) - sizeof(f->ip);
	uint16_t source = htons(1024 + (n >> 16) % 60000), dest = htons(port + n * STRIDE % ports);
	uint32_t pseudo;

	f->ip.saddr = htonl(0x0a000001 + (n & 0xffff));
	f->ip.check = 0;
	f->ip.check = fold(sum(&f->ip, sizeof(f->ip), 0));
	pseudo = sum(&f->ip.saddr, 8, f->ip.protocol + len);
	if (f->ip.protocol == IPPROTO_UDP) {
		f->udp.source = source;
		f->udp.dest = dest;
		f->udp.check = 0;
		f->udp.check = fold(sum(&f->udp, sizeof(f->udp), pseudo)); /* the payload is zeros */
	} else {
		f->tcp.source = source;
		f->tcp.dest = dest;
		f->tcp.seq = n;
		f->tcp.check = 0;
		f->tcp.check = fold(sum(&f->tcp, sizeof(f->tcp), pseudo));
	}
}

static void prepare(struct frame *f, int syn, const uint8_t *from, const uint8_t *to, const char *address)
{
	size_t len = syn ? sizeof(f->tcp) : sizeof(f->udp) + PAYLOAD;

	memcpy(f->eth.ether_shost, from, ETH_ALEN);
	memcpy(f->eth.ether_dhost, to, ETH_ALEN);
	f->eth.ether_type = htons(ETHERTYPE_IP);
	f->ip = (struct iphdr){
		.version = 4, .ihl = 5, .ttl = 64, .protocol = syn ? IPPROTO_TCP : IPPROTO_UDP
	};
	f->ip.tot_len = htons(sizeof(f->ip) + len);
	if (inet_pton(AF_INET, address, &f->ip.daddr) != 1)
		die(address);
	if (syn)
		f->tcp = (struct tcphdr){ .doff = 5, .syn = 1, .window = htons(64240) };
	else
		f->udp.len = htons(len);
}

/* A socket on the device; its hardware address into `own`. */
static int open_device(const char *device, uint8_t *own)
{
	struct sockaddr_ll ll = { .sll_family = AF_PACKET };
	struct ifreq ifr = { 0 };
	int fd = socket(AF_PACKET, SOCK_RAW, 0), one = 1;

	if (fd < 0)
		die("packet socket");
	strncpy(ifr.ifr_name, device, IFNAMSIZ - 1);
	ll.sll_ifindex = if_nametoindex(device);
	if (ioctl(fd, SIOCGIFHWADDR, &ifr) || bind(fd, (struct sockaddr *)&ll, sizeof(ll)))
		die(device);
	memcpy(own, ifr.ifr_hwaddr.sa_data, ETH_ALEN);
	setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one));
	return fd;
}

/* Wait until the packets sent so far are due. */
static void pace(uint64_t begin, uint64_t sent, uint64_t rate)
{
	uint64_t due = begin + sent * NS / rate, t = now();
	struct timespec pause = { (due - t) / NS, (due - t) % NS };

	if (due > t)
		nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
	struct mmsghdr msgs[BATCH] = { 0 };
	struct iovec iov[BATCH];
	uint8_t from[ETH_ALEN], to[ETH_ALEN];
	uint64_t flows, rate, begin, end, sent = 0, next;
	int fd, syn, port, ports;

	if (argc != 10 || sscanf(argv[3], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", to, to + 1, to + 2, to + 3, to + 4,
				 to + 5) != 6) {
		fprintf(stderr, "usage: sender udp|syn DEVICE MAC ADDRESS PORT PORTS FLOWS RATE SECONDS\n");
		return 2;
	}
	syn = !strcmp(argv[1], "syn");
	port = atoi(argv[5]);
	ports = atoi(argv[6]);
	flows = strtoull(argv[7], NULL, 10);
	rate = strtoull(argv[8], NULL, 10);
	fd = open_device(argv[2], from);
	for (int i = 0; i < BATCH; i++) {
		prepare(&frames[i], syn, from, to, argv[4]);
		iov[i] = (struct iovec){ &frames[i], sizeof(frames[i].eth) + ntohs(frames[i].ip.tot_len) };
		msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	begin = now();
	state = begin | 1;
	next = begin; /* another run's are others */
	end = begin + (uint64_t)(atof(argv[9]) * NS);
	while (now() < end) {
		int n;

		for (int i = 0; i < BATCH; i++)
			fill(&frames[i], flows ? xorshift() % flows : syn ? xorshift() : next++, port, ports);
		n = sendmmsg(fd, msgs, BATCH, 0);
		if (n < 0 && errno != ENOBUFS && errno != EAGAIN && errno != EINTR)
			die("sendmmsg");
		sent += n > 0 ? n : 0;
		if (rate)
			pace(begin, sent, rate);
	}
	printf("%llu\n", (unsigned long long)sent);
	return 0;
}
