"""The link of one round, over which every message of an algorithm is sent.

A message passes the stages in a fixed order. *Out* (:mod:`fljax.link.outgoing`): it is perturbed,
masked, compressed and counted; a client that does not follow the protocol replaces it. *Along*: it
is lost, delayed, or ignored by its receiver. *In*: the receiver combines the messages that it
receives by a weighted mean or an aggregator of its own. Each stage is a part of the simulation, so
an algorithm contains no code for it: peers :meth:`~Link.exchange` messages and find them in their
:class:`~fljax.link.Inbox` (:mod:`fljax.link.peer_messages`); clients of a server
:meth:`~Link.collect` theirs towards it, or :meth:`~Link.send` and :meth:`~Link.mean` them, and
receive its published model (:mod:`fljax.link.server_messages`); servers send theirs to the servers
above them (:mod:`fljax.link.tree_messages`). A link exists for one round inside
the traced step; its counts and the messages still on their way are read from it after the step.
"""

from fljax.link.peer_messages import PeerMessages
from fljax.link.private_gradients import PrivateGradients
from fljax.link.server_messages import ServerMessages
from fljax.link.tree_messages import TreeMessages


class Link(PeerMessages, ServerMessages, TreeMessages, PrivateGradients):
    """The link of one round: messages among peers and to servers, and steps within a client.

    Its arguments are documented in :class:`fljax.link.outgoing.OutgoingMessages`.
    """

    def finish(self, algorithm: str, one_by_one: bool) -> None:
        """Raise ``TypeError`` where a stage was not used: a budget or noise without a message;
        failing links, delays or an aggregator where no received message was read; and where
        single messages were read by an algorithm that does not declare it.
        """
        stages = self._stages
        stages_of_receivers = {"losses": stages.losses, "delays": stages.delays}
        stages_of_receivers |= {"aggregation": stages.aggregation, "network": stages.learned}
        if stages.privacy is not None and not self.spent:
            raise TypeError(
                f"{algorithm}.step sends no message in a round, so there is nothing private to "
                "account for; let it exchange or send one, or leave out privacy=."
            )
        for name in ("noise", "upload_noise", "masks"):
            if getattr(stages, name) is not None and name not in self._used:
                raise TypeError(
                    f"{algorithm}.step sends no message that {name}= is for; let peers exchange "
                    "theirs, servers combine them and clients send or collect them, all by "
                    f"now.link, or leave out {name}=."
                )
        if not one_by_one and any(inbox.single for inbox in self._inboxes):
            raise TypeError(
                f"{algorithm}.step reads single messages by inbox.messages, which it does not "
                f"declare; write one_by_one = True in {algorithm}, so that noise and aggregators "
                "that are for means alone are refused."
            )
        useless = [f"{name}=" for name, part in stages_of_receivers.items() if part is not None]
        if useless and self._inboxes and not any(inbox.read for inbox in self._inboxes):
            raise TypeError(
                f"{algorithm}.step reads none of its inboxes, so {' and '.join(useless)} would do "
                "nothing. Combine received messages by inbox.mean(over=now.network.mixing()) or "
                "inbox.sum(), instead of applying the network's weights to sent messages."
            )
