"""The catalogue of what ``doctor`` finds: one entry a code, and codes are never renamed.

What AgentScope makes of each fault was read from its memories, formatters and sessions (1.0.21).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The severity of a finding.

    An ERROR breaks an agent, or shows it data that is not its own; a WARNING loses or repeats
    something, now or later; a NOTICE costs time or space, or will disappear by itself: a store with
    only notices is healthy.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class RepairMethod(StrEnum):
    """The way ``--repair`` repairs a finding: by edits of messages, in the store, or not at all."""

    EDIT = "edit"
    STORE = "store"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding: what it is, what it means for the agent, and its remedy.

    ``what`` names what is counted, in the plural.
    """

    code: str
    severity: Severity
    what: str
    meaning: str
    remedy: str
    repair: RepairMethod = RepairMethod.NONE


_KINDS = (
    FindingKind(
        "tool-call-without-result",
        Severity.ERROR,
        "tool calls without a result",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "--repair puts in the result that AgentScope writes for an interrupted call",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "tool-result-without-call",
        Severity.ERROR,
        "tool results without a call",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "--repair deletes messages that are nothing but such results; a call that is marked "
        "'compressed' while its result is not is repaired by marking the result, too",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "tool-result-before-call",
        Severity.ERROR,
        "tool results before their calls",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "delete the result and the message of its call: memctl delete STORE --id ID "
        "--with-tool-pairs",
    ),
    FindingKind(
        "tool-result-apart",
        Severity.ERROR,
        "tool results that do not directly follow their call",
        "OpenAI, Anthropic and others refuse a message between a call and its result, so every "
        "further reply of the agent fails",
        "delete the messages between them, or the pair: memctl delete STORE --id ID",
    ),
    FindingKind(
        "tool-call-pending",
        Severity.NOTICE,
        "tool calls whose result may still come",
        "an agent is at work, or was stopped within the last hour: then the next reply fails",
        "look again when the agent is done; after an hour it counts as tool-call-without-result",
    ),
    FindingKind(
        "empty-assistant-message",
        Severity.ERROR,
        "assistant messages with nothing in them",
        "model APIs refuse empty text, and AgentScope sends it on",
        "--repair deletes them",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "invalid-message",
        Severity.ERROR,
        "messages that are not valid for AgentScope",
        "it fails to load the whole memory (Msg.from_dict), or to send it",
        "look at them with memctl export, then delete them: memctl delete STORE --id ID",
    ),
    FindingKind(
        "message-without-id",
        Severity.WARNING,
        "messages without an id of their own",
        "AgentScope gives them another id each time it loads them: they cannot be marked, "
        "compressed or deleted",
        "delete them by their time: memctl delete STORE --since T --until T",
    ),
    FindingKind(
        "id-mismatch",
        Severity.ERROR,
        "messages stored under another id than their own",
        "AgentScope does not find them when it marks, compresses or deletes by id, so they stay "
        "forever",
        "export the memory, delete it, and import it: memctl export, memctl delete, memctl import",
    ),
    FindingKind(
        "repeated-id",
        Severity.WARNING,
        "messages whose id occurs earlier in the memory",
        "the agent reads them twice; marking or deleting one affects all; SQL stores refuse them",
        "memctl migrate to a SQL or Redis store keeps the first of each",
    ),
    FindingKind(
        "oversized-tool-result",
        Severity.WARNING,
        "tool results beyond --max-result",
        "each is sent with every reply: it costs tokens, and may exceed the context of the model",
        "compress the memory, or delete the pair: memctl delete STORE --id ID --with-tool-pairs",
    ),
    FindingKind(
        "leftover-hint",
        Severity.WARNING,
        "hints left over from interrupted replies",
        "the agent reads again a hint that was meant for an earlier reply",
        "--repair deletes them, as AgentScope does after each step of reasoning",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "compressed-without-summary",
        Severity.ERROR,
        "messages marked 'compressed' without any summary",
        "the agent skips them and has nothing in their place: it has forgotten them",
        "restore the summary from a backup; else --repair removes the marks, and the agent reads "
        "the messages again",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "summary-elsewhere",
        Severity.WARNING,
        "messages marked 'compressed' where no summary can be",
        "the summary is in the state of the session, if anywhere; if it is lost, so is what the "
        "agent knew",
        "name the states with ?state=FOLDER (or ?state=redis), and doctor shows which are missing",
    ),
    FindingKind(
        "damaged-state",
        Severity.ERROR,
        "session states that are truncated or not valid JSON",
        "AgentScope cannot load the session: the agent fails to start",
        "restore it from a backup; JSONSession writes in place, and a crash truncates the file",
    ),
    FindingKind(
        "damaged-row",
        Severity.ERROR,
        "rows that hold no message, name, mark or position",
        "AgentScope fails to load the whole memory; memctl leaves it out",
        "restore them from a backup; --repair sets them aside, into the journal of the run, from "
        "where memctl undo puts them back",
        RepairMethod.STORE,
    ),
    FindingKind(
        "orphan-mark",
        Severity.WARNING,
        "marks of messages that do not exist",
        "a new message with the same id gets the mark of the old one, and each search by mark "
        "reads them",
        "--repair removes them",
        RepairMethod.STORE,
    ),
    FindingKind(
        "row-id-mismatch",
        Severity.ERROR,
        "rows whose id is not made of user, session and message id",
        "AgentScope does not find them when it marks, compresses or deletes by id, so they stay "
        "forever",
        "export the memory, delete it, and import it: memctl export, memctl delete, memctl import",
    ),
    FindingKind(
        "duplicate-index",
        Severity.WARNING,
        "messages with the same position as another",
        "their order is undefined, and a result may come before its call; concurrent writers of "
        "one session cause this",
        "--repair renumbers the session",
        RepairMethod.STORE,
    ),
    FindingKind(
        "shared-session",
        Severity.ERROR,
        "messages of other users in the same session",
        "AgentScope reads a session by its id alone: each user's agent sees them, and "
        "compresses and clears them",
        "use ids that are unique across users, and move each user: memctl migrate --user U to a "
        "store of their own",
    ),
    FindingKind(
        "session-row-missing",
        Severity.WARNING,
        "messages whose session has no row",
        "their owner is unknown; AgentScope gives the session to the next user who opens it",
        "open the session once as its owner, or insert the row",
    ),
    FindingKind(
        "user-row-missing",
        Severity.WARNING,
        "sessions whose user has no row",
        "joins with the users omit them, and a database with foreign keys refuses them",
        "--repair inserts the users",
        RepairMethod.STORE,
    ),
    FindingKind(
        "no-session-index",
        # AgentScope leaves every database so.  Nothing is lost, and a doctor that called each new
        # store unhealthy would be of no use to scripts.
        Severity.NOTICE,
        "tables without an index on session_id",
        "AgentScope reads the whole table for each reply, of all sessions",
        "--repair creates the index, on PostgreSQL while agents go on writing",
        RepairMethod.STORE,
    ),
    FindingKind(
        "id-without-payload",
        Severity.WARNING,
        "messages in the list whose text is gone",
        "AgentScope skips them without an error: the agent has forgotten them",
        "restore them from a backup; --repair removes the ids from the lists",
        RepairMethod.STORE,
    ),
    FindingKind(
        "payload-without-id",
        Severity.WARNING,
        "message texts that are in no list",
        "no agent reads them, and without a TTL they stay forever",
        "--repair deletes them",
        RepairMethod.STORE,
    ),
    FindingKind(
        "payload-not-json",
        Severity.ERROR,
        "message texts that are not valid JSON objects",
        "AgentScope fails to load the whole memory",
        "restore them from a backup, or delete the keys with redis-cli",
    ),
    FindingKind(
        "expires-early",
        Severity.WARNING,
        "keys that expire before the list of their memory",
        "messages or marks will vanish from a memory that is still in use",
        "--repair sets the longest TTL among them on all keys of the memory",
        RepairMethod.STORE,
    ),
    FindingKind(
        "never-expires",
        # RedisMemory gives what it adds no expiry until the next access (``_refresh_session_ttl``
        # runs before the transaction), so almost every memory with a TTL is in this state.
        Severity.NOTICE,
        "keys without a TTL in a memory that expires",
        "AgentScope fixes it at the next access; without one, the keys stay forever",
        "--repair sets the TTL of their memory",
        RepairMethod.STORE,
    ),
    FindingKind(
        "context-not-in-log",
        Severity.WARNING,
        "messages in the context of a 2.x session that its log lacks",
        "the model sees them and people do not: no list of messages of AgentScope shows them",
        "they leave the context when AgentScope compresses it; memctl lists, exports and deletes "
        "them like others: memctl delete STORE --id ID",
    ),
    FindingKind(
        "context-result-without-call",
        Severity.ERROR,
        "tool results in the context of a 2.x session whose call is not before them",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "mark the message compressed, or delete it: memctl mark add compressed STORE --id ID",
    ),
    FindingKind(
        "session-open-to-others",
        Severity.NOTICE,
        "users of 2.x in one SQL database, where a session is found by its id alone",
        "AgentScope's SQL storage lists the messages of a session for any user who names it, and "
        "replaces the state of another user's session of the same id",
        "let no user choose the id of a session, or give each user a database",
    ),
    FindingKind(
        "session-record-missing",
        Severity.WARNING,
        "logs of 2.x sessions whose record is gone",
        "AgentScope lists no such session, and its log stays; the record expired or was deleted "
        "apart from it",
        "memctl export keeps the log; memctl delete STORE --session ID removes its messages",
    ),
    FindingKind(
        "session-expires-apart",
        Severity.WARNING,
        "2.x sessions whose keys do not expire together",
        "AgentScope refreshes the record when the state is saved and the log when a message "
        "comes: one will be gone while the other is in use",
        "save the state of the session once, or set one TTL with redis-cli",
    ),
    FindingKind(
        "session-index-expired",
        Severity.NOTICE,
        "sessions and agents of 2.x that an index names although they expired",
        "the sets 'agents' and 'agent:ID:sessions' never expire; AgentScope looks each of them up "
        "in vain, each time it lists",
        "remove them from the sets with redis-cli (SREM)",
    ),
    FindingKind(
        "expires-unread",
        Severity.WARNING,
        "memories of agentscope-runtime that expire while nobody reads them",
        "only the services of agentscope-runtime, removed in 1.1, refresh the TTL: the data will "
        "be gone",
        "export them now: memctl export STORE FILE, or memctl migrate STORE TARGET",
    ),
    FindingKind(
        "ambiguous-key",
        Severity.ERROR,
        "histories of agentscope-runtime whose user or session holds a ':'",
        "the services list and delete them as sessions of another user, too: user 'u' gets those "
        "of user 'u:x'",
        "migrate them: memctl tells users apart by what is within the history",
    ),
    FindingKind(
        "owner-mismatch",
        Severity.WARNING,
        "histories of agentscope-runtime under another user or session than their own",
        "the services find them by the key, and write them back under the name within: one "
        "session becomes two",
        "export the memory, delete it, and import it: memctl export, memctl delete, memctl import",
    ),
    FindingKind(
        "session-index-stale",
        Severity.WARNING,
        "sessions that an index 'session_index' of agentscope-runtime 0.2 names wrongly",
        "0.2 lists sessions that are not there, and neither lists nor deletes those that it lacks",
        "delete the key session_index:USER with redis-cli when no 0.2 is in use any more",
    ),
    FindingKind(
        "marks-index-missing",
        Severity.NOTICE,
        "marks in a memory without an index of its marks",
        "data from before AgentScope 1.0.15, which creates the index at the next deletion",
        "--repair creates it",
        RepairMethod.STORE,
    ),
    FindingKind(
        "marks-index-stale",
        Severity.WARNING,
        "marks that are missing in the index of marks",
        "AgentScope skips these lists when it deletes messages: their ids remain",
        "--repair adds them",
        RepairMethod.STORE,
    ),
)

KINDS: dict[str, FindingKind] = {kind.code: kind for kind in _KINDS}
"""Every kind of finding by its code, those about messages first."""
