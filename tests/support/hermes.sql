-- Three sessions that SessionDB of hermes-agent 0.19.0 wrote: s1 has a rewound prompt, and goes on
-- in s2 after a compression; s3 is compacted in place.
CREATE TABLE schema_version (
    version INTEGER NOT NULL
);
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    source TEXT NOT NULL,
    user_id TEXT,
    session_key TEXT,
    chat_id TEXT,
    chat_type TEXT,
    thread_id TEXT,
    display_name TEXT,
    origin_json TEXT,
    expiry_finalized INTEGER DEFAULT 0,
    model TEXT,
    model_config TEXT,
    system_prompt TEXT,
    parent_session_id TEXT,
    started_at REAL NOT NULL,
    ended_at REAL,
    end_reason TEXT,
    message_count INTEGER DEFAULT 0,
    tool_call_count INTEGER DEFAULT 0,
    input_tokens INTEGER DEFAULT 0,
    output_tokens INTEGER DEFAULT 0,
    cache_read_tokens INTEGER DEFAULT 0,
    cache_write_tokens INTEGER DEFAULT 0,
    reasoning_tokens INTEGER DEFAULT 0,
    cwd TEXT,
    git_branch TEXT,
    git_repo_root TEXT,
    billing_provider TEXT,
    billing_base_url TEXT,
    billing_mode TEXT,
    estimated_cost_usd REAL,
    actual_cost_usd REAL,
    cost_status TEXT,
    cost_source TEXT,
    pricing_version TEXT,
    title TEXT,
    api_call_count INTEGER DEFAULT 0,
    handoff_state TEXT,
    handoff_platform TEXT,
    handoff_error TEXT,
    compression_failure_cooldown_until REAL,
    compression_failure_error TEXT,
    compression_fallback_streak INTEGER NOT NULL DEFAULT 0,
    profile_name TEXT,
    rewind_count INTEGER NOT NULL DEFAULT 0,
    archived INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL,
    content TEXT,
    tool_call_id TEXT,
    tool_calls TEXT,
    tool_name TEXT,
    effect_disposition TEXT,
    timestamp REAL NOT NULL,
    token_count INTEGER,
    finish_reason TEXT,
    reasoning TEXT,
    reasoning_content TEXT,
    reasoning_details TEXT,
    codex_reasoning_items TEXT,
    codex_message_items TEXT,
    platform_message_id TEXT,
    observed INTEGER DEFAULT 0,
    active INTEGER NOT NULL DEFAULT 1,
    compacted INTEGER NOT NULL DEFAULT 0,
    api_content TEXT
);
CREATE TABLE session_model_usage (
    session_id TEXT NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    model TEXT NOT NULL,
    billing_provider TEXT NOT NULL DEFAULT '',
    billing_base_url TEXT NOT NULL DEFAULT '',
    billing_mode TEXT NOT NULL DEFAULT '',
    task TEXT NOT NULL DEFAULT '',
    api_call_count INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cache_read_tokens INTEGER NOT NULL DEFAULT 0,
    cache_write_tokens INTEGER NOT NULL DEFAULT 0,
    reasoning_tokens INTEGER NOT NULL DEFAULT 0,
    estimated_cost_usd REAL NOT NULL DEFAULT 0,
    actual_cost_usd REAL NOT NULL DEFAULT 0,
    cost_status TEXT,
    cost_source TEXT,
    first_seen REAL,
    last_seen REAL,
    PRIMARY KEY (session_id, model, billing_provider, billing_base_url, billing_mode, task)
);
CREATE TABLE state_meta (
    key TEXT PRIMARY KEY,
    value TEXT
);
CREATE TABLE gateway_routing (
    scope TEXT NOT NULL DEFAULT '',
    session_key TEXT NOT NULL,
    entry_json TEXT NOT NULL,
    updated_at REAL NOT NULL,
    PRIMARY KEY (scope, session_key)
);
CREATE TABLE compression_locks (
    session_id TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    acquired_at REAL NOT NULL,
    expires_at REAL NOT NULL
);
CREATE TABLE async_delegations (
    delegation_id TEXT PRIMARY KEY,
    origin_session TEXT NOT NULL,
    origin_ui_session_id TEXT NOT NULL DEFAULT '',
    parent_session_id TEXT,
    state TEXT NOT NULL,
    dispatched_at REAL NOT NULL,
    completed_at REAL,
    updated_at REAL NOT NULL,
    event_json TEXT,
    result_json TEXT,
    delivery_state TEXT NOT NULL DEFAULT 'pending',
    delivery_attempts INTEGER NOT NULL DEFAULT 0,
    delivered_at REAL,
    owner_pid INTEGER,
    owner_started_at INTEGER,
    task_json TEXT,
    delivery_claim TEXT,
    delivery_claimed_at REAL
);
CREATE VIRTUAL TABLE messages_fts USING fts5(
    content
);
CREATE VIRTUAL TABLE messages_fts_trigram USING fts5(
    content,
    tokenize='trigram'
);
CREATE INDEX idx_sessions_source ON sessions(source);
CREATE INDEX idx_sessions_source_id ON sessions(source, id);
CREATE INDEX idx_sessions_parent ON sessions(parent_session_id);
CREATE INDEX idx_sessions_started ON sessions(started_at DESC);
CREATE INDEX idx_messages_session ON messages(session_id, timestamp);
CREATE INDEX idx_compression_locks_expires ON compression_locks(expires_at);
CREATE INDEX idx_session_model_usage_session ON session_model_usage(session_id);
CREATE INDEX idx_session_model_usage_model ON session_model_usage(model);
CREATE INDEX idx_async_delegations_delivery
    ON async_delegations(delivery_state, completed_at);
CREATE INDEX idx_messages_platform_msg_id ON messages(session_id, platform_message_id) WHERE platform_message_id IS NOT NULL;
CREATE INDEX idx_messages_session_active
    ON messages(session_id, active, timestamp);
CREATE INDEX idx_messages_active_null
    ON messages(active) WHERE active IS NULL;
CREATE INDEX idx_sessions_session_key
    ON sessions(session_key, started_at DESC);
CREATE INDEX idx_sessions_gateway_peer
    ON sessions(source, user_id, chat_id, chat_type, thread_id, started_at DESC);
CREATE INDEX idx_sessions_handoff_state
    ON sessions(handoff_state, started_at);
CREATE UNIQUE INDEX idx_sessions_title_unique ON sessions(title) WHERE title IS NOT NULL;
CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END;
CREATE TRIGGER messages_fts_delete AFTER DELETE ON messages BEGIN
    DELETE FROM messages_fts WHERE rowid = old.id;
END;
CREATE TRIGGER messages_fts_update AFTER UPDATE ON messages BEGIN
    DELETE FROM messages_fts WHERE rowid = old.id;
    INSERT INTO messages_fts(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END;
CREATE TRIGGER messages_fts_trigram_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts_trigram(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END;
CREATE TRIGGER messages_fts_trigram_delete AFTER DELETE ON messages BEGIN
    DELETE FROM messages_fts_trigram WHERE rowid = old.id;
END;
CREATE TRIGGER messages_fts_trigram_update AFTER UPDATE ON messages BEGIN
    DELETE FROM messages_fts_trigram WHERE rowid = old.id;
    INSERT INTO messages_fts_trigram(rowid, content) VALUES (
        new.id,
        COALESCE(new.content, '') || ' ' || COALESCE(new.tool_name, '') || ' ' || COALESCE(new.tool_calls, '')
    );
END;
INSERT INTO schema_version (version) VALUES (22);
INSERT INTO sessions (id, source, expiry_finalized, model, system_prompt, started_at, ended_at, end_reason, message_count, tool_call_count, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cwd, title, api_call_count, compression_fallback_streak, rewind_count, archived) VALUES ('s1', 'cli', 0, 'm', 'You are Hermes.', 1763632800.5, 1763632900.25, 'compression', 8, 1, 0, 0, 0, 0, 0, '/home/ada/shop', 'The train', 0, 0, 1, 0);
INSERT INTO sessions (id, source, expiry_finalized, parent_session_id, started_at, message_count, tool_call_count, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cwd, api_call_count, compression_fallback_streak, rewind_count, archived) VALUES ('s2', 'cli', 0, 's1', 1763632800.5, 4, 0, 0, 0, 0, 0, 0, '/home/ada/shop', 0, 0, 0, 0);
INSERT INTO sessions (id, source, expiry_finalized, started_at, message_count, tool_call_count, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cwd, api_call_count, compression_fallback_streak, rewind_count, archived) VALUES ('s3', 'cli', 0, 1763632800.5, 2, 0, 0, 0, 0, 0, 0, '/home/ada/blog', 0, 0, 0, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (1, 's1', 'user', 'When does my train leave? xylophone', 1763632801.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, tool_calls, timestamp, finish_reason, reasoning_content, observed, active, compacted) VALUES (2, 's1', 'assistant', 'Let me look.', '[{"id": "c1", "type": "function", "function": {"name": "timetable", "arguments": "{\"day\": \"Friday\"}"}}]', 1763632802.0, 'tool_calls', 'Look it up.', 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, tool_call_id, tool_name, timestamp, observed, active, compacted) VALUES (3, 's1', 'tool', '09:00', 'c1', 'timetable', 1763632803.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, finish_reason, observed, active, compacted) VALUES (4, 's1', 'assistant', 'At nine.', 1763632804.0, 'stop', 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (5, 's1', 'user', 'Forget this one', 1763632805.0, 0, 0, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (6, 's1', 'assistant', 'What?', 1763632806.0, 0, 0, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted, api_content) VALUES (7, 's1', 'user', char(0) || 'json:[{"type": "text", "text": "And this ticket?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]', 1763632807.0, 0, 1, 0, 'And this ticket? [sent otherwise]');
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (8, 's1', 'assistant', 'A ticket to Kyoto.', 1763632808.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (9, 's2', 'user', '[CONTEXT SUMMARY] Ada takes the train at nine.', 1763632809.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (10, 's2', 'assistant', 'Understood.', 1763632810.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (11, 's2', 'user', 'Which platform?', 1763632811.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (12, 's2', 'assistant', 'Platform two.', 1763632812.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (13, 's3', 'user', 'Write a post.', 1763632813.0, 0, 0, 1);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (14, 's3', 'assistant', 'Done.', 1763632814.0, 0, 0, 1);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (15, 's3', 'user', '[SUMMARY] A post was written.', 1763632815.0, 0, 1, 0);
INSERT INTO messages (id, session_id, role, content, timestamp, observed, active, compacted) VALUES (16, 's3', 'assistant', 'Go on.', 1763632816.0, 0, 1, 0);
INSERT INTO session_model_usage (session_id, model, billing_provider, billing_base_url, billing_mode, task, api_call_count, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, estimated_cost_usd, actual_cost_usd) VALUES ('s1', 'm', '', '', '', '', 0, 0, 0, 0, 0, 0, 0.0, 0.0);
