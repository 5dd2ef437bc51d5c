"""Flower's Grid without Flower's processes: nodes are apps in this one, and replies come in reverse order."""

from itertools import count

from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedlit.flower.apps import app_of

FIRST = 1000  # a node's number is not its client's


class FakeGrid(Grid):
    """Args:
    make_host: From the number of a client.
    num_clients: Of which each is a node.
    """

    def __init__(self, make_host, num_clients):
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # a process of Flower's has them
        self.nodes = {FIRST + num_clients - k: k for k in range(num_clients)}
        self.app = app_of(lambda context: make_host(context.node_config["client"]))
        self.waiting = {}
        self.numbers = count(1)
        self.lost = set()  # nodes that lose the next message
        self.started = dict.fromkeys(self.nodes, 0)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *given):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        return [NodeInfo(node_id=node, last_activated_at=str(self.started[node])) for node in self.nodes]

    def push_messages(self, messages):
        keys = []
        for message in messages:
            key = f"message {next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = key
            self.waiting[key] = message_to_proto(message)
            keys.append(key)
        return keys

    def pull_messages(self, message_ids):
        replies = []
        for key in reversed(list(message_ids)):
            if key not in self.waiting:
                continue
            message = message_from_proto(self.waiting.pop(key))
            node = message.metadata.dst_node_id
            if node in self.lost:
                self.lost.remove(node)
                self.started[node] += 1
                continue
            context = Context(1, node, {"client": self.nodes[node]}, RecordDict(), {})
            replies.append(message_from_proto(message_to_proto(self.app(message, context))))
        return replies
