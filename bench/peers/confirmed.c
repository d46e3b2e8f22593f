/*
 * Publishes COUNT messages of BYTES bytes to QUEUE through librabbitmq and waits until the broker has
 * confirmed each; never more than WINDOW of them are unconfirmed. The messages have the attributes of
 * the relay's. Prints the seconds from the first publish to the last confirm, and the processor time.
 *
 *     confirmed HOST PORT USER VHOST QUEUE COUNT BYTES WINDOW      the password: BENCH_PASSWORD
 */
#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const int CHANNEL = 1;
static const int FRAME_BYTES = 131072;

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check_reply(amqp_rpc_reply_t reply, const char *what) {
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) fail(what);
}

static double seconds_of(struct timeval time) {
    return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

static double cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Waits for one answer and marks what it confirms; returns how many messages that are.
 * ``lowest`` is the first tag that is not confirmed. */
static uint64_t confirms(amqp_connection_state_t connection, char *done, uint64_t *lowest) {
    amqp_frame_t frame;
    if (amqp_simple_wait_frame(connection, &frame) != AMQP_STATUS_OK) fail("the connection is lost");
    if (frame.frame_type != AMQP_FRAME_METHOD) fail("a message came back");
    if (frame.payload.method.id != AMQP_BASIC_ACK_METHOD) fail("a message was not taken");
    const amqp_basic_ack_t *ack = frame.payload.method.decoded;
    uint64_t found = 0;
    for (uint64_t tag = ack->multiple ? *lowest : ack->delivery_tag; tag <= ack->delivery_tag; tag++) {
        found += !done[tag];
        done[tag] = 1;
    }
    while (done[*lowest]) ++*lowest;
    return found;
}

int main(int count_of_words, char **words) {
    const char *password = getenv("BENCH_PASSWORD");
    if (count_of_words != 9 || password == NULL) fail("see the head of confirmed.c");
    const char *queue = words[5];
    const uint64_t count = strtoull(words[6], NULL, 10);
    const size_t bytes = strtoull(words[7], NULL, 10);
    const uint64_t window = strtoull(words[8], NULL, 10);

    amqp_connection_state_t connection = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(connection);
    if (socket == NULL || amqp_socket_open(socket, words[1], atoi(words[2])) != AMQP_STATUS_OK)
        fail("no connection");
    check_reply(amqp_login(connection, words[4], 0, FRAME_BYTES, 0, AMQP_SASL_METHOD_PLAIN, words[3],
                           password),
                "no login");
    amqp_channel_open(connection, CHANNEL);
    check_reply(amqp_get_rpc_reply(connection), "no channel");
    amqp_confirm_select(connection, CHANNEL);
    check_reply(amqp_get_rpc_reply(connection), "no confirms");

    char *body = malloc(bytes);
    memset(body, 'x', bytes);
    char *done = calloc(count + 2, 1); /* by tag, from 1; the last stays 0 */
    char message_id[64];
    amqp_table_entry_t header;
    header.key = amqp_cstring_bytes("event-id");
    header.value.kind = AMQP_FIELD_KIND_UTF8;
    header.value.value.bytes = amqp_cstring_bytes("00000000-0000-4000-8000-000000000000");
    amqp_basic_properties_t properties;
    memset(&properties, 0, sizeof properties);
    properties._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG |
                        AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
    properties.content_type = amqp_cstring_bytes("application/cloudevents+json");
    properties.delivery_mode = 2;
    properties.headers.num_entries = 1;
    properties.headers.entries = &header;

    const double began = now(), cpu = cpu_seconds();
    uint64_t sent = 0, confirmed = 0, lowest = 1;
    while (confirmed < count) {
        if (sent < count && sent - confirmed < window) {
            sent++;
            snprintf(message_id, sizeof message_id, "0123456789abcdef-%llu",
                     (unsigned long long)sent);
            properties.message_id = amqp_cstring_bytes(message_id);
            amqp_bytes_t content = {bytes, body};
            if (amqp_basic_publish(connection, CHANNEL, amqp_empty_bytes, amqp_cstring_bytes(queue), 1,
                                   0, &properties, content) != AMQP_STATUS_OK)
                fail("a publish failed");
        } else {
            confirmed += confirms(connection, done, &lowest);
            amqp_maybe_release_buffers(connection);
        }
    }
    printf("%.6f %.6f\n", now() - began, cpu_seconds() - cpu);
    return 0;
}
