"""Requests that several lines share (S1-257 to S1-262; chats S1-268 to S1-270). Inference workers count."""

from batchwright.telemetry.families.declare import Declare

SHARES = (1, 2, 4, 8, 16, 32, 64)


class MicrobatchMetrics:
    def __init__(self, declare: Declare) -> None:
        self.microbatch_requests = declare.counter(
            "microbatch_requests_total",
            "Requests that several lines shared, by what came of them (S1-257)",
            ["model", "category"],
        )
        self.microbatch_inputs = declare.counter(
            "microbatch_inputs_total", "Lines in requests that several shared (S1-258)", ["model"]
        )
        self.microbatch_size = declare.histogram(
            "microbatch_size", "Lines in a request that several shared (S1-259)", ["model"], buckets=SHARES
        )
        self.microbatch_alone = declare.counter(
            "microbatch_isolation_fallback_total",
            "Groups of lines that were asked one by one after all (S1-260)",
            ["model"],
        )
        self.microbatch_ineligible = declare.counter(
            "microbatch_ineligible_items_total",
            "Lines that could share no request for their `shape` or `tokens`, or as failures `shrunk` "
            "requests to one line (S1-261)",
            ["model", "reason"],
        )
        self.microbatch_retry_seconds = declare.histogram(
            "microbatch_retry_delay_seconds",
            "Wait before a request that was shared is asked again (S1-263)",
            ["model", "category"],
        )
        self.microbatch_requeues = declare.counter(
            "microbatch_requeues_total",
            "What was decided of a shared request that failed: `repeated` as it was, `halved`, or its lines "
            "`put_back`, to be asked later (S1-262)",
            ["model", "category", "result"],
        )
        self.chat_groups = declare.counter(
            "chat_microbatch_requests_total",
            "Requests that several chats shared, by outcome: `success` or `error` (S1-268)",
            ["status"],
        )
        self.chat_fallbacks = declare.counter(
            "chat_microbatch_fallbacks_total",
            "Chats asked alone where chats may share requests: for their `shape` or `tokens`, as failures "
            "`shrunk` requests to one line, or after a shared request that could not be `joined`, was "
            "`refused`, could not be `split` or `failed` (S1-269)",
            ["reason"],
        )
        self.chat_group_size = declare.histogram(
            "chat_microbatch_size", "Chats in a request that several shared (S1-270)", buckets=SHARES
        )
