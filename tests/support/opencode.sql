-- A session of OpenCode 1.18.34, which wrote it: a talk with a call of a tool, a compaction, and a
-- turn after it.
CREATE TABLE `project` (
  `id` text PRIMARY KEY,
  `worktree` text NOT NULL,
  `vcs` text,
  `name` text,
  `icon_url` text,
  `icon_url_override` text,
  `icon_color` text,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `time_initialized` integer,
  `sandboxes` text NOT NULL,
  `commands` text
  );
CREATE TABLE `account` (
  `id` text PRIMARY KEY,
  `email` text NOT NULL,
  `url` text NOT NULL,
  `access_token` text NOT NULL,
  `refresh_token` text NOT NULL,
  `token_expiry` integer,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL
  );
CREATE TABLE `session` (
  `id` text PRIMARY KEY,
  `project_id` text NOT NULL,
  `workspace_id` text,
  `parent_id` text,
  `slug` text NOT NULL,
  `directory` text NOT NULL,
  `path` text,
  `title` text NOT NULL,
  `version` text NOT NULL,
  `share_url` text,
  `summary_additions` integer,
  `summary_deletions` integer,
  `summary_files` integer,
  `summary_diffs` text,
  `metadata` text,
  `cost` real DEFAULT 0 NOT NULL,
  `tokens_input` integer DEFAULT 0 NOT NULL,
  `tokens_output` integer DEFAULT 0 NOT NULL,
  `tokens_reasoning` integer DEFAULT 0 NOT NULL,
  `tokens_cache_read` integer DEFAULT 0 NOT NULL,
  `tokens_cache_write` integer DEFAULT 0 NOT NULL,
  `revert` text,
  `permission` text,
  `agent` text,
  `model` text,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `time_compacting` integer,
  `time_archived` integer,
  CONSTRAINT `fk_session_project_id_project_id_fk` FOREIGN KEY (`project_id`) REFERENCES `project`(`id`) ON DELETE CASCADE
  );
CREATE INDEX `session_project_idx` ON `session` (`project_id`);
CREATE INDEX `session_workspace_idx` ON `session` (`workspace_id`);
CREATE INDEX `session_parent_idx` ON `session` (`parent_id`);
CREATE TABLE `message` (
  `id` text PRIMARY KEY,
  `session_id` text NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `data` text NOT NULL,
  CONSTRAINT `fk_message_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
  );
CREATE INDEX `message_session_time_created_id_idx` ON `message` (`session_id`,`time_created`,`id`);
CREATE TABLE `part` (
  `id` text PRIMARY KEY,
  `message_id` text NOT NULL,
  `session_id` text NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `data` text NOT NULL,
  CONSTRAINT `fk_part_message_id_message_id_fk` FOREIGN KEY (`message_id`) REFERENCES `message`(`id`) ON DELETE CASCADE
  );
CREATE INDEX `part_message_id_id_idx` ON `part` (`message_id`,`id`);
CREATE INDEX `part_session_idx` ON `part` (`session_id`);
CREATE TABLE `todo` (
  `session_id` text NOT NULL,
  `content` text NOT NULL,
  `status` text NOT NULL,
  `priority` text NOT NULL,
  `position` integer NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  CONSTRAINT `todo_pk` PRIMARY KEY(`session_id`, `position`),
  CONSTRAINT `fk_todo_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
  );
CREATE INDEX `todo_session_idx` ON `todo` (`session_id`);
CREATE TABLE `session_message` (
  `id` text PRIMARY KEY,
  `session_id` text NOT NULL,
  `type` text NOT NULL,
  `seq` integer NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  `data` text NOT NULL,
  CONSTRAINT `fk_session_message_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
  );
CREATE UNIQUE INDEX `session_message_session_seq_idx` ON `session_message` (`session_id`,`seq`);
CREATE INDEX `session_message_session_type_seq_idx` ON `session_message` (`session_id`,`type`,`seq`);
CREATE INDEX `session_message_session_time_created_id_idx` ON `session_message` (`session_id`,`time_created`,`id`);
CREATE INDEX `session_message_time_created_idx` ON `session_message` (`time_created`);
CREATE TABLE `session_input` (
  `id` text PRIMARY KEY,
  `session_id` text NOT NULL,
  `prompt` text NOT NULL,
  `delivery` text NOT NULL,
  `admitted_seq` integer NOT NULL,
  `promoted_seq` integer,
  `time_created` integer NOT NULL,
  CONSTRAINT `fk_session_input_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
  );
CREATE INDEX `session_input_session_pending_delivery_seq_idx` ON `session_input` (`session_id`,`promoted_seq`,`delivery`,`admitted_seq`);
CREATE UNIQUE INDEX `session_input_session_admitted_seq_idx` ON `session_input` (`session_id`,`admitted_seq`);
CREATE UNIQUE INDEX `session_input_session_promoted_seq_idx` ON `session_input` (`session_id`,`promoted_seq`);
CREATE TABLE `session_context_epoch` (
  `session_id` text PRIMARY KEY,
  `baseline` text NOT NULL,
  `snapshot` text NOT NULL,
  `baseline_seq` integer NOT NULL,
  CONSTRAINT `fk_session_context_epoch_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
  );
CREATE TABLE `session_share` (
  `session_id` text PRIMARY KEY,
  `id` text NOT NULL,
  `secret` text NOT NULL,
  `url` text NOT NULL,
  `time_created` integer NOT NULL,
  `time_updated` integer NOT NULL,
  CONSTRAINT `fk_session_share_session_id_session_id_fk` FOREIGN KEY (`session_id`) REFERENCES `session`(`id`) ON DELETE CASCADE
  );
CREATE TABLE `event_sequence` (
  `aggregate_id` text PRIMARY KEY,
  `seq` integer NOT NULL,
  `owner_id` text
  );
CREATE TABLE `event` (
  `id` text PRIMARY KEY,
  `aggregate_id` text NOT NULL,
  `seq` integer NOT NULL,
  `type` text NOT NULL,
  `data` text NOT NULL,
  CONSTRAINT `fk_event_aggregate_id_event_sequence_aggregate_id_fk` FOREIGN KEY (`aggregate_id`) REFERENCES `event_sequence`(`aggregate_id`) ON DELETE CASCADE
  );
CREATE UNIQUE INDEX `event_aggregate_seq_idx` ON `event` (`aggregate_id`,`seq`);
CREATE INDEX `event_aggregate_type_seq_idx` ON `event` (`aggregate_id`,`type`,`seq`);
INSERT INTO project (id, worktree, time_created, time_updated, sandboxes) VALUES ('global', '/', 1763632428884, 1763632462624, '[]');
INSERT INTO session (id, project_id, slug, directory, path, title, version, summary_additions, summary_deletions, summary_files, cost, tokens_input, tokens_output, tokens_reasoning, tokens_cache_read, tokens_cache_write, permission, agent, model, time_created, time_updated) VALUES ('ses_one', 'global', 'kind-pixel', '/srv/shop', 'srv/shop', 'Answer 1.', '1.18.34', 0, 0, 0, 0.0, 50, 25, 0, 0, 0, '[{"permission":"question","pattern":"*","action":"deny"},{"permission":"plan_enter","pattern":"*","action":"deny"},{"permission":"plan_exit","pattern":"*","action":"deny"}]', 'build', '{"id":"fake","providerID":"anthropic","variant":"default"}', 1763632430103, 1763632468624);
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_227956135001pqvRCdt5T0anYz', 'ses_one', 1763632430901, 1763632433658, '{"role":"user","time":{"created":1763632430901},"agent":"build","model":{"providerID":"anthropic","modelID":"fake"},"summary":{"diffs":[]}}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_227956b7d001dnjHbj83jOVWCs', 'ses_one', 1763632433533, 1763632435086, '{"parentID":"msg_227956135001pqvRCdt5T0anYz","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/srv/shop","root":"/"},"cost":0,"tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake","providerID":"anthropic","time":{"created":1763632433533,"completed":1763632435082},"finish":"stop"}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_227958859001rD9h7ePjOOgYuH', 'ses_one', 1763632440921, 1763632447469, '{"role":"user","time":{"created":1763632440921},"agent":"build","model":{"providerID":"anthropic","modelID":"fake"},"summary":{"diffs":[]}}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_22795944a001Ap3N5Qq5029HAK', 'ses_one', 1763632443978, 1763632447384, '{"parentID":"msg_227958859001rD9h7ePjOOgYuH","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/srv/shop","root":"/"},"cost":0,"tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake","providerID":"anthropic","time":{"created":1763632443978,"completed":1763632447382},"finish":"tool-calls"}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_22795a19b0016BwpL173U1uly2', 'ses_one', 1763632447387, 1763632447764, '{"parentID":"msg_227958859001rD9h7ePjOOgYuH","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/srv/shop","root":"/"},"cost":0,"tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake","providerID":"anthropic","time":{"created":1763632447387,"completed":1763632447761},"finish":"stop"}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_22795c1c9001WJed39K3ijb27s', 'ses_one', 1763632455625, 1763632455633, '{"role":"user","model":{"providerID":"anthropic","modelID":"fake"},"agent":"build","time":{"created":1763632455625}}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_22795cd30001ZMipO5lbjkbblo', 'ses_one', 1763632458544, 1763632458928, '{"role":"assistant","parentID":"msg_22795c1c9001WJed39K3ijb27s","mode":"compaction","agent":"compaction","summary":true,"path":{"cwd":"/srv/shop","root":"/"},"cost":0,"tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake","providerID":"anthropic","time":{"created":1763632458544,"completed":1763632458927},"finish":"stop"}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_22795e4240015NGvVHgB3V31YE', 'ses_one', 1763632464420, 1763632467169, '{"role":"user","time":{"created":1763632464420},"agent":"build","model":{"providerID":"anthropic","modelID":"fake"},"summary":{"diffs":[]}}');
INSERT INTO message (id, session_id, time_created, time_updated, data) VALUES ('msg_22795edaf001zj6DLrU2ZR0Go5', 'ses_one', 1763632466863, 1763632468594, '{"parentID":"msg_22795e4240015NGvVHgB3V31YE","role":"assistant","mode":"build","agent":"build","path":{"cwd":"/srv/shop","root":"/"},"cost":0,"tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"modelID":"fake","providerID":"anthropic","time":{"created":1763632466863,"completed":1763632468593},"finish":"stop"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795613c001wibhaxjBJDk621', 'msg_227956135001pqvRCdt5T0anYz', 'ses_one', 1763632433499, 1763632433503, '{"type":"text","text":"My train is at nine."}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_2279570f8001mHmyiCL7HxdWN9', 'msg_227956b7d001dnjHbj83jOVWCs', 'ses_one', 1763632434936, 1763632434963, '{"type":"step-start"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795711e001WwKYIDUz5rMmhZ', 'msg_227956b7d001dnjHbj83jOVWCs', 'ses_one', 1763632435060, 1763632435066, '{"type":"text","text":"Answer 2.","time":{"start":1763632434974,"end":1763632435065}}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795717c001pFAx328e1CYLzE', 'msg_227956b7d001dnjHbj83jOVWCs', 'ses_one', 1763632435068, 1763632435078, '{"reason":"stop","type":"step-finish","tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795885f001SgJPTKUuF64Vrq', 'msg_227958859001rD9h7ePjOOgYuH', 'ses_one', 1763632443818, 1763632443825, '{"type":"text","text":"CALL bash {\"command\": \"echo h1\", \"description\": \"say\"}"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_2279599b1001oh33M9ySVNKPQm', 'msg_22795944a001Ap3N5Qq5029HAK', 'ses_one', 1763632445361, 1763632445363, '{"type":"step-start"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_2279599bf001hlKUMwuBL5FUkr', 'msg_22795944a001Ap3N5Qq5029HAK', 'ses_one', 1763632445375, 1763632445403, '{"type":"text","text":"Answer 3.","time":{"start":1763632445375,"end":1763632445398}}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_2279599dd001gqx6bwHUAWmEef', 'msg_22795944a001Ap3N5Qq5029HAK', 'ses_one', 1763632445405, 1763632447360, '{"type":"tool","tool":"bash","callID":"toolu_3_0","state":{"status":"completed","input":{"command":"echo h1","description":"say"},"output":"h1\n","metadata":{"output":"h1\n","exit":0,"truncated":false},"title":"echo h1","time":{"start":1763632445437,"end":1763632447358}}}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795a1860016eescq13x2rDbo', 'msg_22795944a001Ap3N5Qq5029HAK', 'ses_one', 1763632447367, 1763632447368, '{"reason":"tool-calls","type":"step-finish","tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795a2e5001hkTtcgOJFU7VdG', 'msg_22795a19b0016BwpL173U1uly2', 'ses_one', 1763632447717, 1763632447719, '{"type":"step-start"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795a2e9001Yahw9P7OwN2yTf', 'msg_22795a19b0016BwpL173U1uly2', 'ses_one', 1763632447721, 1763632447738, '{"type":"text","text":"Answer 4.","time":{"start":1763632447721,"end":1763632447736}}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795a2fc0010Fox2vuQfIY3rW', 'msg_22795a19b0016BwpL173U1uly2', 'ses_one', 1763632447740, 1763632447750, '{"reason":"stop","type":"step-finish","tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795cce0001L2O1swikgikAvI', 'msg_22795c1c9001WJed39K3ijb27s', 'ses_one', 1763632458464, 1763632458476, '{"type":"compaction","auto":false}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795ce2f001mNuIfBOPyrwDON', 'msg_22795cd30001ZMipO5lbjkbblo', 'ses_one', 1763632458799, 1763632458800, '{"type":"step-start"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795ce3e0015VLZTdfld66kHA', 'msg_22795cd30001ZMipO5lbjkbblo', 'ses_one', 1763632458814, 1763632458837, '{"type":"text","text":"Answer 5.","time":{"start":1763632458814,"end":1763632458835}}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795ce75001Dq1g2P0AQupdjb', 'msg_22795cd30001ZMipO5lbjkbblo', 'ses_one', 1763632458869, 1763632458884, '{"reason":"stop","type":"step-finish","tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795e4260012Jd3T07yXkKhyE', 'msg_22795e4240015NGvVHgB3V31YE', 'ses_one', 1763632466846, 1763632466848, '{"type":"text","text":"And now?"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795f45f001Im6zB5TL78WFv2', 'msg_22795edaf001zj6DLrU2ZR0Go5', 'ses_one', 1763632468575, 1763632468577, '{"type":"step-start"}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795f46200191aAoDqUDIk7RY', 'msg_22795edaf001zj6DLrU2ZR0Go5', 'ses_one', 1763632468578, 1763632468581, '{"type":"text","text":"Answer 6.","time":{"start":1763632468578,"end":1763632468581}}');
INSERT INTO part (id, message_id, session_id, time_created, time_updated, data) VALUES ('prt_22795f46c001K31sla4g0bBYRQ', 'msg_22795edaf001zj6DLrU2ZR0Go5', 'ses_one', 1763632468588, 1763632468589, '{"reason":"stop","type":"step-finish","tokens":{"total":15,"input":10,"output":5,"reasoning":0,"cache":{"write":0,"read":0}},"cost":0}');
INSERT INTO event_sequence (aggregate_id, seq) VALUES ('ses_one', 64);
INSERT INTO event (id, aggregate_id, seq, type, data) VALUES ('evt_227955e1f001hbpGAZPPt8L7Wp', 'ses_one', 0, 'session.created.1', '{"sessionID":"ses_one","info":{"id":"ses_one","slug":"kind-pixel","projectID":"global","directory":"/srv/shop","path":"srv/shop","cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"read":0,"write":0}},"title":"New session - 2026-11-29T13:53:50.103Z","version":"1.18.34","time":{"created":1763632430103,"updated":1763632430103},"permission":[{"permission":"question","pattern":"*","action":"deny"},{"permission":"plan_enter","pattern":"*","action":"deny"},{"permission":"plan_exit","pattern":"*","action":"deny"}]}}');
INSERT INTO event (id, aggregate_id, seq, type, data) VALUES ('evt_227956137001BgufbJF4fwOLK8', 'ses_one', 1, 'session.updated.1', '{"sessionID":"ses_one","info":{"id":"ses_one","slug":"kind-pixel","projectID":"global","directory":"/srv/shop","path":"srv/shop","cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"read":0,"write":0}},"title":"New session - 2026-11-29T13:53:50.103Z","agent":"build","model":{"id":"fake","providerID":"anthropic","variant":"default"},"version":"1.18.34","time":{"created":1763632430103,"updated":1763632430901},"permission":[{"permission":"question","pattern":"*","action":"deny"},{"permission":"plan_enter","pattern":"*","action":"deny"},{"permission":"plan_exit","pattern":"*","action":"deny"}]}}');
INSERT INTO event (id, aggregate_id, seq, type, data) VALUES ('evt_22795613d001F7rOtqjO5nwFE8', 'ses_one', 2, 'message.updated.1', '{"sessionID":"ses_one","info":{"id":"msg_227956135001pqvRCdt5T0anYz","sessionID":"ses_one","role":"user","time":{"created":1763632430901},"agent":"build","model":{"providerID":"anthropic","modelID":"fake"}}}');
INSERT INTO event (id, aggregate_id, seq, type, data) VALUES ('evt_227956b5b0017mAg4mZg0x1Xze', 'ses_one', 3, 'message.part.updated.1', '{"sessionID":"ses_one","part":{"id":"prt_22795613c001wibhaxjBJDk621","sessionID":"ses_one","messageID":"msg_227956135001pqvRCdt5T0anYz","type":"text","text":"My train is at nine."},"time":1763632433499}');
INSERT INTO event (id, aggregate_id, seq, type, data) VALUES ('evt_227956b61001JQe4iqpt4ePOFi', 'ses_one', 4, 'session.updated.1', '{"sessionID":"ses_one","info":{"id":"ses_one","slug":"kind-pixel","projectID":"global","directory":"/srv/shop","path":"srv/shop","cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"read":0,"write":0}},"title":"New session - 2026-11-29T13:53:50.103Z","agent":"build","model":{"id":"fake","providerID":"anthropic","variant":"default"},"version":"1.18.34","time":{"created":1763632430103,"updated":1763632433505},"permission":[{"permission":"question","pattern":"*","action":"deny"},{"permission":"plan_enter","pattern":"*","action":"deny"},{"permission":"plan_exit","pattern":"*","action":"deny"}]}}');
INSERT INTO event (id, aggregate_id, seq, type, data) VALUES ('evt_227956b7e001Ib3x1j3VEaX59N', 'ses_one', 5, 'message.updated.1', '{"sessionID":"ses_one","info":{"id":"msg_227956b7d001dnjHbj83jOVWCs","sessionID":"ses_one","role":"assistant","time":{"created":1763632433533},"parentID":"msg_227956135001pqvRCdt5T0anYz","modelID":"fake","providerID":"anthropic","mode":"build","agent":"build","path":{"cwd":"/srv/shop","root":"/"},"cost":0,"tokens":{"input":0,"output":0,"reasoning":0,"cache":{"read":0,"write":0}}}}');
