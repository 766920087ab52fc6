/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * accept QUEUE [gso]: takes every packet of an NFQUEUE whole and accepts it untouched, as fast as this interface
 * allows: 64 packets a system call, one verdict for all of them. What NFQUEUE itself costs: the limit of whatever
 * stands on it. Says "ready" when the queue is bound; runs until it is killed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH 64
/* A packet of many segments and what netlink puts around it; no multiple of a page, or heads would share cache sets. */
#define ROOM (65536 + 4096 + 64)
#define QUEUE_LENGTH 8192
#define RCVBUF (128 << 20)

struct request {
	struct nlmsghdr nlh;
	struct nfgenmsg nfg;
	char attrs[64];
};

static int sock;
static uint16_t queue;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static struct request *request(struct request *r, int type, int flags)
{
	memset(r, 0, sizeof(*r));
	r->nlh.nlmsg_len = NLMSG_LENGTH(sizeof(r->nfg));
	r->nlh.nlmsg_type = NFNL_SUBSYS_QUEUE << 8 | type;
	r->nlh.nlmsg_flags = NLM_F_REQUEST | flags;
	r->nfg.version = NFNETLINK_V0;
	r->nfg.res_id = htons(queue);
	return r;
}

static void put(struct request *r, int type, const void *data, size_t len)
{
	struct nlattr *a = (struct nlattr *)((char *)r + NLMSG_ALIGN(r->nlh.nlmsg_len));

	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + len;
	memcpy((char *)a + NLA_HDRLEN, data, len);
	r->nlh.nlmsg_len = NLMSG_ALIGN(r->nlh.nlmsg_len) + NLA_ALIGN(a->nla_len);
}

/* Send a configuration message and wait for the kernel's word on it: without, a refusal would not be seen. */
static void configure(struct request *r, const char *what)
{
	struct {
		struct nlmsghdr nlh;
		struct nlmsgerr err;
		char quoted[256];
	} answer;

	if (send(sock, r, r->nlh.nlmsg_len, 0) < 0 || recv(sock, &answer, sizeof(answer), 0) < 0)
		die(what);
	if (answer.nlh.nlmsg_type == NLMSG_ERROR && answer.err.error) {
		fprintf(stderr, "%s: %s\n", what, strerror(-answer.err.error));
		exit(1);
	}
}

static void bind_queue(int gso)
{
	struct nfqnl_msg_config_cmd cmd = { .command = NFQNL_CFG_CMD_BIND };
	struct nfqnl_msg_config_params params = { .copy_range = htonl(0xffff),
						  .copy_mode = NFQNL_COPY_PACKET };
	uint32_t length = htonl(QUEUE_LENGTH), flag = htonl(NFQA_CFG_F_GSO);
	struct request r;

	put(request(&r, NFQNL_MSG_CONFIG, NLM_F_ACK), NFQA_CFG_CMD, &cmd, sizeof(cmd));
	configure(&r, "bind");
	put(request(&r, NFQNL_MSG_CONFIG, NLM_F_ACK), NFQA_CFG_PARAMS, &params, sizeof(params));
	put(&r, NFQA_CFG_QUEUE_MAXLEN, &length, sizeof(length));
	if (gso) {
		put(&r, NFQA_CFG_FLAGS, &flag, sizeof(flag));
		put(&r, NFQA_CFG_MASK, &flag, sizeof(flag));
	}
	configure(&r, "configure");
}

static void open_socket(void)
{
	struct sockaddr_nl local = { .nl_family = AF_NETLINK };
	int one = 1, size = RCVBUF;

	sock = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	if (sock < 0 || bind(sock, (struct sockaddr *)&local, sizeof(local)))
		die("netlink socket");
	setsockopt(sock, SOL_NETLINK, NETLINK_NO_ENOBUFS, &one, sizeof(one));
	/* Refused in a user namespace: then as much as the host allows. */
	if (setsockopt(sock, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		setsockopt(sock, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
}

/* The id of a message's packet, network order; 0: it is none (ids start at 1). */
static uint32_t packet_id(const char *data, unsigned len)
{
	const struct nlmsghdr *nlh = (const struct nlmsghdr *)data;
	const struct nlattr *a = (const struct nlattr *)(data + NLMSG_SPACE(sizeof(struct nfgenmsg)));

	if (len < NLMSG_SPACE(sizeof(struct nfgenmsg)) + NLA_HDRLEN + sizeof(struct nfqnl_msg_packet_hdr) ||
	    nlh->nlmsg_type != (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET) || a->nla_type != NFQA_PACKET_HDR)
		return 0;
	return ((const struct nfqnl_msg_packet_hdr *)((const char *)a + NLA_HDRLEN))->packet_id;
}

int main(int argc, char **argv)
{
	struct nfqnl_msg_verdict_hdr verdict = { .verdict = htonl(NF_ACCEPT) };
	struct mmsghdr msgs[BATCH] = { 0 };
	struct iovec iov[BATCH];
	struct request r;
	char *room;

	if (argc < 2) {
		fprintf(stderr, "usage: accept QUEUE [gso]\n");
		return 2;
	}
	queue = atoi(argv[1]);
	room = malloc((size_t)BATCH * ROOM);
	if (!room)
		die("memory");
	open_socket();
	bind_queue(argc > 2 && !strcmp(argv[2], "gso"));
	puts("ready");
	fflush(stdout);
	for (int i = 0; i < BATCH; i++) {
		iov[i] = (struct iovec){ room + (size_t)i * ROOM, ROOM };
		msgs[i].msg_hdr = (struct msghdr){ .msg_iov = &iov[i], .msg_iovlen = 1 };
	}
	for (;;) {
		int n = recvmmsg(sock, msgs, BATCH, MSG_WAITFORONE, NULL);

		verdict.id = 0;
		for (int i = 0; i < n; i++) {
			uint32_t id = packet_id(iov[i].iov_base, msgs[i].msg_len);

			verdict.id = id ? id : verdict.id;
		}
		if (!verdict.id)
			continue;
		put(request(&r, NFQNL_MSG_VERDICT_BATCH, 0), NFQA_VERDICT_HDR, &verdict, sizeof(verdict));
		send(sock, &r, r.nlh.nlmsg_len, 0);
	}
}
