/* Temporary: removed once table and packet code have landed. */
#include <stdlib.h>
#include "uvs.h"
__attribute__((weak, noreturn)) struct uvs_table * uvs_table_open(const char *path, uint32_t conn_max, const uint8_t *boot_id, uint64_t now, char *msg, size_t msglen) { abort(); }
__attribute__((weak, noreturn)) void uvs_table_close(struct uvs_table *t) { abort(); }
__attribute__((weak, noreturn)) void uvs_table_info(const struct uvs_table *t, struct uvs_table_info *info) { abort(); }
__attribute__((weak, noreturn)) struct uvs_stats * uvs_table_total(struct uvs_table *t) { abort(); }
__attribute__((weak, noreturn)) struct uvs_conn * uvs_conn_at(struct uvs_table *t, uint32_t i) { abort(); }
__attribute__((weak, noreturn)) struct uvs_dest * uvs_dest_at(struct uvs_table *t, uint32_t i) { abort(); }
__attribute__((weak, noreturn)) struct uvs_service * uvs_service_at(struct uvs_table *t, uint32_t i) { abort(); }
__attribute__((weak, noreturn)) uint32_t uvs_record_index(const struct uvs_table *t, const void *record) { abort(); }
__attribute__((weak, noreturn)) uint32_t uvs_record_next(struct uvs_table *t, int kind, uint32_t *cursor) { abort(); }
__attribute__((weak, noreturn)) uint32_t uvs_dest_new(struct uvs_table *t) { abort(); }
__attribute__((weak, noreturn)) int uvs_dest_free(struct uvs_table *t, uint32_t i) { abort(); }
__attribute__((weak, noreturn)) uint32_t uvs_service_new(struct uvs_table *t) { abort(); }
__attribute__((weak, noreturn)) void uvs_service_free(struct uvs_table *t, uint32_t i) { abort(); }
__attribute__((weak, noreturn)) struct uvs_conn * uvs_conn_in_get(struct uvs_table *t, const struct uvs_iphdr *iph) { abort(); }
__attribute__((weak, noreturn)) struct uvs_conn * uvs_conn_out_get(struct uvs_table *t, const struct uvs_iphdr *iph) { abort(); }
__attribute__((weak, noreturn)) struct uvs_conn * uvs_ct_in_get(struct uvs_table *t, const struct uvs_conn_param *key) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_in_get_batch(struct uvs_table *t, const struct uvs_iphdr *iph, uint32_t n, uint32_t *out) { abort(); }
__attribute__((weak, noreturn)) struct uvs_conn * uvs_conn_new(struct uvs_table *t, const struct uvs_conn_param *p, uint32_t flags, uint32_t dest, uint64_t now) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_put(struct uvs_table *t, struct uvs_conn *c, uint64_t now) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_expire_now(struct uvs_table *t, struct uvs_conn *c, uint64_t now) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_del(struct uvs_table *t, struct uvs_conn *c) { abort(); }
__attribute__((weak, noreturn)) void uvs_control_add(struct uvs_table *t, struct uvs_conn *c, struct uvs_conn *controller) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_rekey(struct uvs_table *t, struct uvs_conn *c, uint16_t cport, uint16_t vport, uint16_t dport) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_fill_cport(struct uvs_table *t, struct uvs_conn *c, uint16_t cport) { abort(); }
__attribute__((weak, noreturn)) uint32_t uvs_expire(struct uvs_table *t, uint64_t now, uint32_t budget) { abort(); }
__attribute__((weak, noreturn)) uint32_t uvs_conn_remaining(const struct uvs_conn *c, uint64_t now) { abort(); }
__attribute__((weak, noreturn)) void uvs_in_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes) { abort(); }
__attribute__((weak, noreturn)) void uvs_out_stats(struct uvs_table *t, const struct uvs_conn *c, uint32_t bytes) { abort(); }
__attribute__((weak, noreturn)) void uvs_conn_stats(struct uvs_table *t, const struct uvs_conn *c) { abort(); }
__attribute__((weak, noreturn)) void uvs_set_state(struct uvs_table *t, struct uvs_conn *c, int dir, const struct uvs_iphdr *iph) { abort(); }
__attribute__((weak, noreturn)) int uvs_tcp_next(int secure, int dir, int event, int state) { abort(); }
__attribute__((weak, noreturn)) int uvs_sctp_next(int dir, int event, int state) { abort(); }
__attribute__((weak, noreturn)) const char * uvs_state_name(int protocol, int state) { abort(); }
__attribute__((weak, noreturn)) uint32_t * uvs_timeouts(struct uvs_table *t, int protocol) { abort(); }
__attribute__((weak, noreturn)) void uvs_secure_tcp(struct uvs_table *t, int on) { abort(); }
