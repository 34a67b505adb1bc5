"""The catalogue of findings of ``doctor``, by code; codes are never renamed.

The effects of each finding were read from AgentScope's memories, formatters and sessions (1.0.21).
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Severity(StrEnum):
    """The severity of a finding.

    An ERROR breaks an agent, or shows the agent data of other owners.  A WARNING loses or repeats
    data, now or later.  A NOTICE costs time or space, will disappear by itself, or depends on data
    outside the store.  A store with only notices is healthy.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


class RepairMethod(StrEnum):
    """The way in which ``--repair`` repairs a finding.

    ``EDIT`` edits messages.  With ``STORE``, the store itself makes the repair, and can undo it.
    With ``QUARANTINE``, the store moves damaged data into a file, and nothing puts the data back.
    ``NONE`` means that ``--repair`` leaves the finding as it is.
    """

    EDIT = "edit"
    STORE = "store"
    QUARANTINE = "quarantine"
    NONE = "none"


class FindingKind(Struct, frozen=True):
    """A kind of finding.

    ``what`` names the counted objects, in the plural.  ``meaning`` is the effect on the agent or
    the store.  ``remedy`` says what the user can do.  ``repair`` is the way in which ``--repair``
    repairs the finding.
    """

    code: str
    severity: Severity
    what: str
    meaning: str
    remedy: str
    repair: RepairMethod = RepairMethod.NONE


OVERSIZED = "oversized-tool-result"
"""The code that ``memctl offload`` remedies."""

DAMAGED_FILE = "damaged-file"
"""The code of damage that ``Store.check_integrity`` finds."""

_KINDS = (
    FindingKind(
        DAMAGED_FILE,
        Severity.ERROR,
        "indexes that lack rows, and pages that are damaged",
        "agents and memctl miss messages without an error: a copy has fewer, an erase leaves some",
        'make the indexes anew: sqlite3 FILE "REINDEX"; if that fails, or pages are damaged, '
        "restore a backup, or save what can be read: sqlite3 FILE .recover | sqlite3 NEW",
    ),
    FindingKind(
        "tool-call-without-result",
        Severity.ERROR,
        "tool calls without a result",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "--repair adds the result that AgentScope writes for an interrupted call; if the result is "
        "marked 'compressed', --repair removes the mark",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "tool-result-without-call",
        Severity.ERROR,
        "tool results without a call",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "--repair deletes messages that hold only such results; if the call is marked "
        "'compressed', --repair marks the result, too",
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
        "repeated-tool-call",
        Severity.ERROR,
        "tool calls with the id of another call that has no result yet",
        "model APIs refuse a call without a result of its own, or an id that occurs twice",
        "--repair keeps the last of them, and the other contents of their messages; where several "
        "results differ, delete all but one: memctl delete STORE --id ID",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "repeated-tool-result",
        Severity.ERROR,
        "tool results of a call that has another result",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "--repair keeps one of those that say the same, and the genuine one next to an interrupted "
        "one; where they differ, delete all but one: memctl delete STORE --id ID",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "reused-call-id",
        # AgentScope restarts the numbers of calls in each reply for some models.
        Severity.NOTICE,
        "tool calls with the id of an earlier call that has its result",
        "Anthropic refuses an id that occurs twice; other APIs pair calls and results in order",
        "nothing, unless the agent moves to such a model: then compress the memory, or delete the "
        "earlier pair: memctl delete STORE --id ID --with-tool-pairs",
    ),
    FindingKind(
        "incomplete-tool-call",
        Severity.ERROR,
        "tool calls without an id or a name, and results without an id",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "read them in an export, then delete the message of the call and that of its result: "
        "memctl delete STORE --id ID",
    ),
    FindingKind(
        "invalid-arguments",
        Severity.ERROR,
        "tool calls whose arguments are not a JSON object",
        "some model APIs and chat templates refuse the conversation; the text was probably cut "
        "short when the model reached its limit of tokens",
        "read them in an export, then delete the call and its result: memctl delete STORE --id ID "
        "--with-tool-pairs",
    ),
    FindingKind(
        "lone-reasoning",
        Severity.ERROR,
        "reasoning items without the item that they belong to",
        "the Responses API refuses reasoning that is not followed by a message or a call of the "
        "model",
        "--repair deletes them",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "repeated-item",
        Severity.ERROR,
        "items whose id occurs earlier in the session",
        "the Responses API refuses an id that occurs twice",
        "--repair deletes those that repeat an item exactly; of others delete all but one: memctl "
        "delete STORE --id ID",
        RepairMethod.EDIT,
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
        "an agent is working, or was stopped less than an hour ago; if it was stopped, its next "
        "reply fails",
        "run doctor again when the agent is done; after an hour this is tool-call-without-result",
    ),
    FindingKind(
        "waiting-call",
        Severity.NOTICE,
        "tool calls that wait for a person or another program",
        "the framework has stopped at them, and goes on when the answer comes, at any age",
        "answer them in the application, or let it reject them; --repair leaves them alone",
    ),
    FindingKind(
        "unknown-role",
        Severity.NOTICE,
        "messages with a role that memctl does not know",
        "a copy to another framework takes the speakers for users, and is a named loss",
        "check the column of roles: memctl stores detect; else nothing",
    ),
    FindingKind(
        "empty-assistant-message",
        Severity.ERROR,
        "assistant messages without content",
        "the framework sends the empty text, and model APIs refuse it",
        "--repair deletes them",
        RepairMethod.EDIT,
    ),
    FindingKind(
        "unread-message",
        Severity.NOTICE,
        "assistant messages of which memctl reads only metadata or unknown fields",
        "they look empty in reports, and some model APIs refuse a message without text",
        "read them in an export: memctl export STORE -o FILE; if the agent fails, delete them: "
        "memctl delete STORE --id ID",
    ),
    FindingKind(
        "invalid-message",
        Severity.ERROR,
        "messages that are not valid for the framework of the store",
        "the framework fails to load the whole memory, or to send it to the model",
        "read them in an export, then delete them: memctl delete STORE --id ID",
    ),
    FindingKind(
        "message-without-id",
        Severity.WARNING,
        "messages without an id of their own",
        "AgentScope gives them a new id each time it loads them: they cannot be marked, "
        "compressed or deleted",
        "delete them by their time: memctl delete STORE --since T --until T",
    ),
    FindingKind(
        "id-mismatch",
        Severity.ERROR,
        "messages stored under an id that is not their own",
        "AgentScope does not find them when it marks, compresses or deletes by id, so they stay "
        "forever",
        "correct the id in the message, or delete the message: memctl delete STORE --id ID",
    ),
    FindingKind(
        "repeated-id",
        Severity.WARNING,
        "messages whose id occurs earlier in the memory",
        "the agent reads them twice, and marks or deletes all of them at once; SQL stores refuse "
        "them",
        "copy to a SQL or Redis store: memctl migrate --lossy keeps the first of each",
    ),
    FindingKind(
        OVERSIZED,
        Severity.WARNING,
        "tool results larger than --max-result",
        "each is sent for every reply: it costs tokens, and may exceed the context of the model",
        "move them to files: memctl offload STORE --to DIR; or compress the memory",
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
        Severity.NOTICE,
        "messages marked 'compressed' whose summaries are not in the store",
        "the summary can only be in the session state; if it is lost, the agent has forgotten "
        "these messages",
        "add ?state=FOLDER (or ?state=redis) to the URL: doctor then shows which summaries are "
        "missing",
    ),
    FindingKind(
        "damaged-state",
        Severity.ERROR,
        "sessions whose JSON is truncated, not valid, or not in UTF-8, or that hold anything but "
        "messages where the framework keeps messages",
        "the framework cannot load the session: the agent fails to start",
        "restore it from a backup; a crash of the framework during a write truncates a file",
    ),
    FindingKind(
        "trailing-data",
        Severity.ERROR,
        "session states that are whole documents with more bytes after their end",
        "the framework cannot load the session: the agent fails to start",
        "--repair moves what follows into a quarantine file",
        RepairMethod.QUARANTINE,
    ),
    FindingKind(
        "damaged-fact",
        Severity.ERROR,
        "facts that cannot be read",
        "the agent does not find them; memctl leaves out their scope",
        "restore them from a backup, or delete them with the tools of their system",
    ),
    FindingKind(
        "unreadable-checkpoint",
        Severity.ERROR,
        "checkpoints, or messages in them, that cannot be read",
        "memctl leaves out the thread; its graph may read it, if the value is encrypted, pickled, "
        "or a DeltaChannel",
        "read the thread by its graph; if that fails, delete it by its checkpointer "
        "(delete_thread)",
    ),
    FindingKind(
        "encrypted-message",
        Severity.NOTICE,
        "encrypted messages",
        "memctl cannot read them: it copies them as they are, to stores of the same framework, "
        "and searches, converts and checks none of them",
        "nothing: the program with the key reads them",
    ),
    FindingKind(
        "outside-branches",
        Severity.WARNING,
        "items in no branch",
        "AdvancedSQLiteSession does not see them, and deletes them when it next removes an item",
        "read the session with SQLiteSession; or copy it to a file and, under a new name, back",
    ),
    FindingKind(
        "fact-without-text",
        Severity.ERROR,
        "facts without a text",
        "the agent finds nothing in them",
        "delete them: memctl delete STORE --id ID",
    ),
    FindingKind(
        "fact-without-vector",
        Severity.WARNING,
        "facts without a vector",
        "a search by meaning never finds them",
        "make them by a migration into a new store: memctl migrate STORE NEW --embedder NAME",
    ),
    FindingKind(
        "vector-dimensions",
        Severity.ERROR,
        "facts whose vector has another size than those of the store",
        "searches fail, or never find them",
        "make them by a migration into a new store: memctl migrate STORE NEW --embedder NAME",
    ),
    FindingKind(
        "duplicate-fact",
        Severity.NOTICE,
        "facts with the text of another one of the same scope",
        "the agent gets the same text twice, in the place of another fact",
        "delete all but one of them: memctl delete STORE --id ID",
    ),
    FindingKind(
        "repeated-fact",
        Severity.WARNING,
        "lines with the id of a later one",
        "ReMe reads the last of them, and drops the others when it writes the file",
        "save texts that only these lines have as new facts; deleting the id removes all its lines",
    ),
    FindingKind(
        "cut-file",
        Severity.WARNING,
        "Markdown files that are empty, or end within their frontmatter",
        "they were probably cut short as they were written: the agent finds little or nothing",
        "restore them from a backup, or delete them: memctl delete STORE --id FILE",
    ),
    FindingKind(
        "bad-frontmatter",
        Severity.WARNING,
        "files whose frontmatter is not read",
        "the agent does not see their names, descriptions and tags",
        "correct the lines between the first two '---'",
    ),
    FindingKind(
        "broken-link",
        Severity.WARNING,
        "links to files that are not in the vault",
        "the agent follows them and finds nothing",
        "correct or remove the links, or restore the files",
    ),
    FindingKind(
        "stale-index",
        Severity.WARNING,
        "differences between an index and its files",
        "the agent reads MEMORY.md, or the index of the day: it may miss new files, "
        "and look for deleted ones",
        "have the agent put MEMORY.md in order; for days: reme daily_reindex date=DATE",
    ),
    FindingKind(
        "stale-search-index",
        Severity.NOTICE,
        "files that ReMe has to index again",
        "searches do not find their present text",
        "ReMe does so when it runs",
    ),
    FindingKind(
        "expired-fact",
        Severity.NOTICE,
        "facts past their expiration date",
        "mem0 hides them from the agent, but keeps them",
        "delete them if nobody needs them: memctl delete STORE --id ID",
    ),
    FindingKind(
        "vector-without-fact",
        Severity.WARNING,
        "vectors that belong to no fact",
        "they take places in the agent's search, and mem0 may file the next fact under another "
        "one's vector",
        "the next change that memctl writes leaves them out; keep a copy of the folder before",
    ),
    FindingKind(
        "entity-link",
        Severity.WARNING,
        "links of entities to facts that are not there",
        "the names of deleted facts are kept, and count in the agent's search; a mem0 that was "
        "started anew does not clean up when it deletes",
        "--repair takes the links off, and removes entities that link to nothing else",
        RepairMethod.STORE,
    ),
    FindingKind(
        "history-differs",
        Severity.NOTICE,
        "facts whose history does not end with their text",
        "mem0 shows a history that misses the last change",
        "nothing that memctl could know; mem0 goes on writing it with the next change",
    ),
    FindingKind(
        "history-without-fact",
        Severity.NOTICE,
        "facts that are not there, but not deleted by their history",
        "their texts are kept in history.db: a run was killed as it deleted them, or several "
        "stores share the file, and they are facts of another one",
        "if no other store shares the file, remove the rows of these ids with sqlite3",
    ),
    FindingKind(
        "damaged-row",
        Severity.ERROR,
        "rows without a valid message, name, mark or position",
        "the framework fails to load the whole memory; memctl leaves it out",
        "restore them from a backup, or delete them with the tools of their system",
    ),
    FindingKind(
        "wrong-key-type",
        Severity.ERROR,
        "keys of a memory that hold another type of value than AgentScope writes",
        "AgentScope fails when it reads the memory, its marks or their index; memctl takes them "
        "for empty, and does not change the memory",
        "restore them from a backup, or delete them: redis-cli DEL KEY",
    ),
    FindingKind(
        "orphan-mark",
        Severity.WARNING,
        "marks of messages that do not exist",
        "a new message with the same id gets the mark of the old one, and every search by mark "
        "reads such marks",
        "--repair moves them into a quarantine file",
        RepairMethod.QUARANTINE,
    ),
    FindingKind(
        "row-id-mismatch",
        Severity.ERROR,
        "rows whose id does not consist of user, session and message id",
        "AgentScope does not find them when it marks, compresses or deletes by id, so they stay "
        "forever",
        "export the memory, delete it, and import it: memctl export, memctl delete, memctl import",
    ),
    FindingKind(
        "duplicate-index",
        Severity.WARNING,
        "messages with the position of another message",
        "their order is undefined, and a result may come before its call; concurrent writers of "
        "one session cause this",
        "--repair renumbers the session",
        RepairMethod.STORE,
    ),
    FindingKind(
        "shared-session",
        Severity.ERROR,
        "messages of other users in the same session",
        "AgentScope reads a session by its id alone: each user's agent reads, compresses and "
        "clears the messages of all",
        "use session ids that are unique across users, and copy each user to a separate store: "
        "memctl migrate STORE TARGET --user USER",
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
        "joins with the table of users omit them, and a database with foreign keys refuses them",
        "insert them: INSERT INTO users SELECT DISTINCT user_id FROM session WHERE user_id NOT IN "
        "(SELECT id FROM users)",
    ),
    FindingKind(
        "no-session-index",
        # AgentScope creates no such index. Nothing is lost, and a doctor that called each new store
        # unhealthy would be of no use to scripts.
        Severity.NOTICE,
        "tables without an index on session_id",
        "AgentScope reads the messages of all sessions for each reply",
        "--repair creates the index; on PostgreSQL, agents can write meanwhile",
        RepairMethod.STORE,
    ),
    FindingKind(
        "id-without-payload",
        Severity.WARNING,
        "messages in the list whose text is gone",
        "AgentScope skips them without an error: the agent has forgotten them",
        "restore them from a backup; --repair moves the ids into a quarantine file",
        RepairMethod.QUARANTINE,
    ),
    FindingKind(
        "payload-without-id",
        Severity.WARNING,
        "message texts that are in no list",
        "no agent reads them, and without a TTL they stay forever",
        "--repair moves them into a quarantine file",
        RepairMethod.QUARANTINE,
    ),
    FindingKind(
        "payload-not-json",
        Severity.ERROR,
        "message texts that are not valid JSON objects",
        "AgentScope fails to load the whole memory",
        "restore them from a backup, or delete them: redis-cli DEL KEY; --repair then removes "
        "their ids and marks",
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
        # RedisMemory sets the TTL of new keys only at the next access (``_refresh_session_ttl``
        # runs before the transaction), so almost every memory with a TTL is in this state.
        Severity.NOTICE,
        "keys without a TTL in a memory that expires",
        "AgentScope sets the TTL at the next access; if there is none, the keys stay forever",
        "--repair sets the TTL of their memory",
        RepairMethod.STORE,
    ),
    FindingKind(
        "context-not-in-log",
        Severity.WARNING,
        "messages in the context of a 2.x session that are not in its log",
        "the model reads them, but AgentScope never lists them for people",
        "keep them until AgentScope compresses the context, or delete them: memctl delete STORE "
        "--id ID",
    ),
    FindingKind(
        "context-result-without-call",
        Severity.ERROR,
        "tool results in the context of a 2.x session without an earlier call",
        "model APIs refuse the conversation, so every further reply of the agent fails",
        "mark the message compressed, or delete it: memctl mark add STORE compressed --id ID",
    ),
    FindingKind(
        "session-open-to-others",
        Severity.NOTICE,
        "users of 2.x who share a SQL database",
        "AgentScope finds a session in SQL by its id alone: a user who names the session of "
        "another user reads its messages, and replaces its state",
        "do not let users choose session ids, or give each user a separate database",
    ),
    FindingKind(
        "session-record-missing",
        Severity.WARNING,
        "logs of 2.x sessions whose record is gone",
        "AgentScope does not list the session, but its log stays; the record expired or was "
        "deleted without the log",
        "save the log with memctl export; delete its messages: memctl delete STORE --session ID",
    ),
    FindingKind(
        "session-expires-apart",
        Severity.WARNING,
        "2.x sessions whose keys expire at different times",
        "AgentScope renews the TTL of the record when it saves the state, and that of the log when "
        "a message arrives: one can expire while the other is in use",
        "save the state of the session once, or set one TTL with redis-cli",
    ),
    FindingKind(
        "session-index-expired",
        Severity.NOTICE,
        "sessions and agents of 2.x that have expired, but are still in an index",
        "the sets 'agents' and 'agent:ID:sessions' never expire; each time AgentScope lists them, "
        "it looks up the expired ones in vain",
        "remove them from the sets with redis-cli (SREM)",
    ),
    FindingKind(
        "expires-unread",
        Severity.WARNING,
        "memories of agentscope-runtime whose TTL is no longer renewed",
        "only the services of agentscope-runtime, removed in 1.1, renew the TTL: the data will "
        "expire",
        "save them now: memctl export STORE -o FILE, or memctl migrate STORE TARGET",
    ),
    FindingKind(
        "ambiguous-key",
        Severity.ERROR,
        "histories of agentscope-runtime whose user or session contains ':'",
        "the services list and delete them for another user, too: for user 'u', also the sessions "
        "of user 'u:x'",
        "copy them with memctl migrate, which takes the user from the history itself",
    ),
    FindingKind(
        "owner-mismatch",
        Severity.WARNING,
        "histories of agentscope-runtime whose key names another user or session",
        "the services find a history by its key, but write it under the names that it contains: "
        "one session becomes two",
        "migrate the memory to another store, which gets the names of the key: memctl migrate",
    ),
    FindingKind(
        "session-index-stale",
        Severity.WARNING,
        "sessions that are missing or wrong in 'session_index' of agentscope-runtime 0.2",
        "0.2 lists sessions that do not exist, and neither lists nor deletes the missing ones",
        "when 0.2 is no longer in use, delete the key session_index:USER with redis-cli",
    ),
    FindingKind(
        "state-keys-stale",
        Severity.WARNING,
        "keys that are missing or wrong in the set of keys of a session of AgentScope Java",
        "the framework neither lists nor deletes a session whose state is not in the set ':_keys'; "
        "it looks up wrong keys in vain",
        "save the session once with AgentScope Java, or correct the set: redis-cli SADD, SREM",
    ),
    FindingKind(
        "state-near-limit",
        Severity.WARNING,
        "sessions whose state nearly fills the column, or a packet of the database",
        "the database refuses a state that is larger: the agent fails to save its next replies",
        "compress the memory: memctl compress STORE --mode replace; raise max_allowed_packet, or "
        "make the column a LONGTEXT",
    ),
    FindingKind(
        "marks-index-missing",
        Severity.NOTICE,
        "marks in a memory without an index of its marks",
        "AgentScope before 1.0.15 wrote them; newer versions create the index at the next deletion",
        "--repair creates it",
        RepairMethod.STORE,
    ),
    FindingKind(
        "marks-index-stale",
        Severity.WARNING,
        "marks that are missing in the index of marks",
        "AgentScope skips their lists when it deletes messages: ids of deleted messages remain",
        "--repair adds them",
        RepairMethod.STORE,
    ),
)

KINDS: dict[str, FindingKind] = {kind.code: kind for kind in _KINDS}
"""Every kind of finding by its code, findings of messages first."""

ORDER: dict[str, int] = {
    code: place
    for place, code in enumerate(
        sorted(KINDS, key=lambda code: list(Severity).index(KINDS[code].severity))
    )
}
"""The place of each code in reports: errors first, then warnings, then notices."""

UNREAD = frozenset(
    {
        "damaged-state",
        "trailing-data",
        "damaged-fact",
        "damaged-row",
        "unreadable-checkpoint",
    }
)
"""The codes of data that ``Store.read`` leaves out."""
