CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE run (
	id INTEGER NOT NULL, 
	uid TEXT NOT NULL, 
	path TEXT NOT NULL, 
	manifest_stamp TEXT NOT NULL, 
	experiment TEXT NOT NULL, 
	name TEXT, 
	spec_hash TEXT NOT NULL, 
	seed BIGINT NOT NULL, 
	precision TEXT NOT NULL, 
	precision_effective TEXT, 
	numerics TEXT NOT NULL, 
	planned_numerics TEXT NOT NULL, 
	scheduler TEXT NOT NULL, 
	planned_scheduler TEXT NOT NULL, 
	job_id TEXT, 
	array_index INTEGER, 
	submitted_at TEXT, 
	git_commit TEXT, 
	git_dirty BOOLEAN, 
	state TEXT NOT NULL, 
	reason TEXT, 
	exit_code INTEGER, 
	attempt INTEGER NOT NULL, 
	t_start FLOAT, 
	t_end FLOAT, 
	wall_s FLOAT, 
	epoch_ms BIGINT NOT NULL, 
	clock_ms BIGINT NOT NULL, is_settled BOOLEAN DEFAULT 1 NOT NULL, cause TEXT, job_name TEXT, is_shared BOOLEAN DEFAULT 0 NOT NULL, submission TEXT, home TEXT, is_sampled BOOLEAN DEFAULT 0 NOT NULL, resting_in INTEGER, job_cluster TEXT, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT uq_run_uid UNIQUE (uid)
);
CREATE INDEX ix_run_experiment ON run (experiment);
CREATE INDEX ix_run_name ON run (name);
CREATE INDEX ix_run_spec_hash ON run (spec_hash);
CREATE TABLE run_fact (
	run_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_run_fact PRIMARY KEY (run_id, "key"), 
	CONSTRAINT fk_run_fact_run_id FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_run_fact_key ON run_fact ("key");
CREATE TABLE run_tag (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	tag TEXT NOT NULL, 
	CONSTRAINT pk_run_tag PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_run_tag_run_id FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_run_tag_tag ON run_tag (tag);
CREATE TABLE journal (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	file TEXT NOT NULL, 
	uid TEXT NOT NULL, 
	writer TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	t0 FLOAT NOT NULL, 
	byte_offset BIGINT NOT NULL, 
	events INTEGER NOT NULL, 
	bad_lines INTEGER NOT NULL, records BIGINT DEFAULT 0 NOT NULL, next_seq BIGINT DEFAULT 0 NOT NULL, lost_records BIGINT DEFAULT 0 NOT NULL, rank INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_journal PRIMARY KEY (id), 
	CONSTRAINT fk_journal_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT uq_journal_run_id_file UNIQUE (run_id, file)
);
CREATE TABLE event (
	journal_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	t_ms BIGINT NOT NULL, 
	name TEXT NOT NULL, 
	details TEXT NOT NULL, 
	CONSTRAINT pk_event PRIMARY KEY (journal_id, ordinal), 
	CONSTRAINT fk_event_journal_id FOREIGN KEY(journal_id) REFERENCES journal (id), 
	CONSTRAINT fk_event_run_id FOREIGN KEY(run_id) REFERENCES run (id)
);
CREATE INDEX ix_event_run_id ON event (run_id);
CREATE TABLE metric (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	CONSTRAINT pk_metric PRIMARY KEY (id), 
	CONSTRAINT uq_metric_name UNIQUE (name)
);
CREATE TABLE point (
	series_id INTEGER NOT NULL, 
	step BIGINT NOT NULL, 
	t_ms BIGINT NOT NULL, 
	value FLOAT, 
	CONSTRAINT pk_point PRIMARY KEY (series_id, step)
)
 WITHOUT ROWID

;
CREATE TABLE summary (
	run_id INTEGER NOT NULL, 
	metric_id INTEGER NOT NULL, 
	n INTEGER NOT NULL, 
	n_nonfinite INTEGER NOT NULL, 
	first FLOAT, 
	last FLOAT, 
	last_step BIGINT, 
	min FLOAT, 
	min_step BIGINT, 
	max FLOAT, 
	max_step BIGINT, 
	total FLOAT NOT NULL, 
	CONSTRAINT pk_summary PRIMARY KEY (run_id, metric_id), 
	CONSTRAINT fk_summary_metric_id FOREIGN KEY(metric_id) REFERENCES metric (id), 
	CONSTRAINT fk_summary_run_id FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_summary_metric_id ON summary (metric_id);
CREATE TABLE series (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	metric_id INTEGER NOT NULL, 
	journal_id INTEGER NOT NULL, 
	CONSTRAINT pk_series PRIMARY KEY (id), 
	CONSTRAINT fk_series_journal_id FOREIGN KEY(journal_id) REFERENCES journal (id), 
	CONSTRAINT fk_series_metric_id FOREIGN KEY(metric_id) REFERENCES metric (id), 
	CONSTRAINT fk_series_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT uq_series_journal_id_metric_id UNIQUE (journal_id, metric_id)
);
CREATE INDEX ix_series_run_id_metric_id ON series (run_id, metric_id);
CREATE INDEX ix_run_submission ON run (submission);
CREATE TABLE poll (
	scheduler TEXT NOT NULL, 
	claimed_at FLOAT, 
	asked_at FLOAT, 
	next_at FLOAT, 
	calls INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	problem TEXT, 
	CONSTRAINT pk_poll PRIMARY KEY (scheduler)
)
 WITHOUT ROWID

;
CREATE TABLE word (
	uid TEXT NOT NULL, 
	at FLOAT NOT NULL, 
	state TEXT NOT NULL, 
	raw TEXT NOT NULL, 
	exit_code TEXT, 
	reason TEXT, 
	expected_start TEXT, 
	is_live BOOLEAN NOT NULL, 
	CONSTRAINT pk_word PRIMARY KEY (uid)
)
 WITHOUT ROWID

;
CREATE TABLE run_note (
	run_id INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	at FLOAT NOT NULL, 
	author TEXT NOT NULL, 
	text TEXT NOT NULL, 
	CONSTRAINT pk_run_note PRIMARY KEY (run_id, position), 
	CONSTRAINT fk_run_note_run_id FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID

;
CREATE TABLE run_usage (
	run_id INTEGER NOT NULL, 
	gpus INTEGER NOT NULL, 
	gpu_s FLOAT, 
	energy_j FLOAT, 
	energy_method TEXT, 
	energy_scope TEXT, 
	energy_disagrees BOOLEAN NOT NULL, 
	energy_reason TEXT, 
	energy_uncertainty_j FLOAT, 
	mean_power_w FLOAT, 
	max_power_w FLOAT, 
	power_limit_w FLOAT, 
	throttled_power_share FLOAT, 
	throttled_thermal_share FLOAT, 
	sm_mhz FLOAT, 
	util_percent FLOAT, 
	memory_util_percent FLOAT, 
	sm_active_percent FLOAT, 
	tensor_percent FLOAT, 
	dram_percent FLOAT, 
	max_memory_mb FLOAT, 
	max_temperature_c FLOAT, 
	cpu_s FLOAT, 
	max_host_memory_mb FLOAT, 
	co2_g FLOAT, 
	co2_source TEXT, 
	xids TEXT, 
	incomplete TEXT, 
	CONSTRAINT pk_run_usage PRIMARY KEY (run_id), 
	CONSTRAINT fk_run_usage_run_id FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID

;
CREATE TABLE run_work (
	run_id INTEGER NOT NULL, 
	devices INTEGER, 
	model_flops FLOAT, 
	flops_doubt TEXT, 
	samples FLOAT, 
	tokens FLOAT, 
	peak_allocated_mb FLOAT, 
	peak_reserved_mb FLOAT, 
	CONSTRAINT pk_run_work PRIMARY KEY (run_id), 
	CONSTRAINT fk_run_work_run_id FOREIGN KEY(run_id) REFERENCES run (id)
)
 WITHOUT ROWID

;
CREATE TABLE sampler (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	file TEXT NOT NULL, 
	uid TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	node INTEGER NOT NULL, 
	host TEXT NOT NULL, 
	t0 FLOAT NOT NULL, 
	byte_offset BIGINT NOT NULL, 
	bad_lines INTEGER NOT NULL, 
	carry TEXT NOT NULL, 
	CONSTRAINT pk_sampler PRIMARY KEY (id), 
	CONSTRAINT fk_sampler_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT uq_sampler_run_id_file UNIQUE (run_id, file)
);
CREATE TABLE device (
	id INTEGER NOT NULL, 
	sampler_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	uuid TEXT, 
	CONSTRAINT pk_device PRIMARY KEY (id), 
	CONSTRAINT fk_device_sampler_id FOREIGN KEY(sampler_id) REFERENCES sampler (id), 
	CONSTRAINT uq_device_sampler_id_name UNIQUE (sampler_id, name)
);
CREATE TABLE bucket (
	device_id INTEGER NOT NULL, 
	t_ms BIGINT NOT NULL, 
	samples INTEGER NOT NULL, 
	covered_s FLOAT NOT NULL, 
	mean_power_w FLOAT, 
	energy_j FLOAT, 
	util_percent FLOAT, 
	memory_util_percent FLOAT, 
	sm_active_percent FLOAT, 
	tensor_percent FLOAT, 
	dram_percent FLOAT, 
	sm_mhz FLOAT, 
	max_memory_mb FLOAT, 
	max_temperature_c FLOAT, 
	throttled_power_s FLOAT, 
	throttled_thermal_s FLOAT, 
	cpu_s FLOAT, energy_covered_s FLOAT, cpu_covered_s FLOAT, 
	CONSTRAINT pk_bucket PRIMARY KEY (device_id, t_ms), 
	CONSTRAINT fk_bucket_device_id FOREIGN KEY(device_id) REFERENCES device (id)
)
 WITHOUT ROWID

;
CREATE TABLE settings (
	id INTEGER NOT NULL, 
	digest TEXT NOT NULL, 
	CONSTRAINT pk_settings PRIMARY KEY (id), 
	CONSTRAINT uq_settings_digest UNIQUE (digest)
);
CREATE TABLE setting (
	settings_id INTEGER NOT NULL, 
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	CONSTRAINT pk_setting PRIMARY KEY (settings_id, "key"), 
	CONSTRAINT fk_setting_settings_id FOREIGN KEY(settings_id) REFERENCES settings (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_setting_key ON setting ("key");
CREATE TABLE run_settings (
	run_id INTEGER NOT NULL, 
	settings_id INTEGER NOT NULL, 
	CONSTRAINT pk_run_settings PRIMARY KEY (run_id, settings_id), 
	CONSTRAINT fk_run_settings_run_id FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_run_settings_settings_id FOREIGN KEY(settings_id) REFERENCES settings (id)
)
 WITHOUT ROWID

;
CREATE INDEX ix_run_settings_settings_id ON run_settings (settings_id);
CREATE INDEX ix_run_resting_in ON run (resting_in);
CREATE TABLE folder (
	id INTEGER NOT NULL, 
	path TEXT NOT NULL, 
	home TEXT NOT NULL, 
	changed_ns BIGINT NOT NULL, 
	looked_at FLOAT NOT NULL, 
	cleared_at FLOAT NOT NULL, 
	CONSTRAINT pk_folder PRIMARY KEY (id), 
	CONSTRAINT uq_folder_path_home UNIQUE (path, home)
);
CREATE VIEW runs (uid, experiment, name, state, is_settled, cause, reason, exit_code, attempt, seed, precision, precision_effective, numerics, scheduler, job_id, array_index, job_name, job_cluster, submission, submitted_at, t_start, t_end, wall_s, spec_hash, git_commit, git_dirty, path) AS SELECT run.uid, run.experiment, run.name, run.state, CASE WHEN run.is_settled THEN 1 WHEN NOT run.is_settled THEN 0 END, run.cause, run.reason, run.exit_code, run.attempt, run.seed, run.precision, run.precision_effective, run.numerics, run.scheduler, run.job_id, run.array_index, run.job_name, run.job_cluster, run.submission, run.submitted_at, run.t_start, run.t_end, run.wall_s, run.spec_hash, run.git_commit, CASE WHEN run.git_dirty THEN 1 WHEN NOT run.git_dirty THEN 0 END, run.path FROM run;
CREATE VIEW params (uid, key, value, number) AS SELECT run.uid, p.key, CASE WHEN substr(p.value, 1, 1) = '"' AND json_valid(p.value) THEN json_extract(p.value, '$') WHEN p.value <> 'null' THEN p.value END, CASE WHEN json_valid(p.value) AND json_type(p.value) IN ('integer', 'real') THEN CAST(p.value AS REAL) END FROM run_settings r
            JOIN setting p ON p.settings_id = r.settings_id JOIN run ON run.id = r.run_id;
CREATE VIEW facts (uid, key, value, number) AS SELECT run.uid, p.key, CASE WHEN substr(p.value, 1, 1) = '"' AND json_valid(p.value) THEN json_extract(p.value, '$') WHEN p.value <> 'null' THEN p.value END, CASE WHEN json_valid(p.value) AND json_type(p.value) IN ('integer', 'real') THEN CAST(p.value AS REAL) END FROM run_fact p JOIN run ON run.id = p.run_id;
CREATE VIEW tags (uid, tag) AS SELECT run.uid, t.tag FROM run_tag t JOIN run ON run.id = t.run_id;
CREATE VIEW notes (uid, at, author, text) AS SELECT run.uid, n.at, n.author, n.text FROM run_note n JOIN run ON run.id = n.run_id;
CREATE VIEW metrics (uid, metric, n, n_nonfinite, first, last, last_step, min, min_step, max, max_step, mean) AS SELECT run.uid, metric.name, s.n, s.n_nonfinite, s.first, s.last, s.last_step, s.min, s.min_step, s.max,
            s.max_step,
            CASE WHEN abs(s.total) <= 1.7976931348623157e308 THEN s.total / NULLIF(s.n - s.n_nonfinite, 0) END
            FROM summary s JOIN run ON run.id = s.run_id JOIN metric ON metric.id = s.metric_id;
CREATE VIEW points (uid, metric, step, t_s, value) AS SELECT run.uid, metric.name, p.step, (p.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION), p.value
            FROM series s JOIN run ON run.id = s.run_id JOIN metric ON metric.id = s.metric_id
            JOIN journal j ON j.id = s.journal_id JOIN point p ON p.series_id = s.id
            WHERE NOT EXISTS (
              SELECT 1 FROM series s2 JOIN journal j2 ON j2.id = s2.journal_id JOIN point p2 ON p2.series_id = s2.id
              WHERE s2.run_id = s.run_id AND s2.metric_id = s.metric_id AND j2.rank > j.rank AND p2.step = p.step)
            AND NOT EXISTS (
              SELECT 1 FROM series s2 JOIN journal j2 ON j2.id = s2.journal_id JOIN point p2 ON p2.series_id = s2.id
              WHERE s2.run_id = s.run_id AND s2.metric_id = s.metric_id AND p2.step < p.step
              AND j2.attempt > j.attempt);
CREATE VIEW usage (uid, gpus, gpu_s, energy_j, energy_method, energy_scope, energy_uncertainty_j, energy_disagrees, energy_reason, mean_power_w, max_power_w, power_limit_w, throttled_power_share, throttled_thermal_share, sm_mhz, util_percent, memory_util_percent, sm_active_percent, tensor_percent, dram_percent, max_memory_mb, max_temperature_c, cpu_s, max_host_memory_mb, co2_g, co2_source, xids, incomplete) AS SELECT run.uid, u.gpus, u.gpu_s, u.energy_j, u.energy_method, u.energy_scope, u.energy_uncertainty_j, CASE WHEN u.energy_disagrees THEN 1 WHEN NOT u.energy_disagrees THEN 0 END, u.energy_reason, u.mean_power_w, u.max_power_w, u.power_limit_w, u.throttled_power_share, u.throttled_thermal_share, u.sm_mhz, u.util_percent, u.memory_util_percent, u.sm_active_percent, u.tensor_percent, u.dram_percent, u.max_memory_mb, u.max_temperature_c, u.cpu_s, u.max_host_memory_mb, u.co2_g, u.co2_source, u.xids, u.incomplete FROM run_usage u JOIN run ON run.id = u.run_id;
CREATE VIEW work (uid, devices, model_flops, flops_doubt, samples, tokens, peak_allocated_mb, peak_reserved_mb) AS SELECT run.uid, w.devices, w.model_flops, w.flops_doubt, w.samples, w.tokens, w.peak_allocated_mb, w.peak_reserved_mb FROM run_work w JOIN run ON run.id = w.run_id;
CREATE VIEW timelines (uid, attempt, node, host, device, uuid, t_s, samples, covered_s, mean_power_w, energy_j, energy_covered_s, util_percent, memory_util_percent, sm_active_percent, tensor_percent, dram_percent, sm_mhz, max_memory_mb, max_temperature_c, throttled_power_s, throttled_thermal_s, cpu_s, cpu_covered_s) AS SELECT run.uid, s.attempt, s.node, s.host, d.name, d.uuid,
            (b.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION), b.samples, b.covered_s, b.mean_power_w, b.energy_j, b.energy_covered_s, b.util_percent, b.memory_util_percent, b.sm_active_percent, b.tensor_percent, b.dram_percent, b.sm_mhz, b.max_memory_mb, b.max_temperature_c, b.throttled_power_s, b.throttled_thermal_s, b.cpu_s, b.cpu_covered_s
            FROM bucket b JOIN device d ON d.id = b.device_id JOIN sampler s ON s.id = d.sampler_id
            JOIN run ON run.id = s.run_id;
CREATE VIEW events (uid, t_s, attempt, writer, name, details) AS SELECT run.uid, (e.t_ms - run.clock_ms) / CAST(1000 AS DOUBLE PRECISION), j.attempt, j.writer, e.name,
            e.details FROM event e JOIN run ON run.id = e.run_id JOIN journal j ON j.id = e.journal_id;
CREATE VIEW journals (uid, file, attempt, writer, host, t0, bytes, events, bad_lines, lost_records) AS SELECT run.uid, j.file, j.attempt, j.writer, j.host, j.t0, j.byte_offset, j.events, j.bad_lines,
            j.lost_records FROM journal j JOIN run ON run.id = j.run_id;
CREATE VIEW samplers (uid, file, attempt, node, host, t0, bytes, bad_lines) AS SELECT run.uid, s.file, s.attempt, s.node, s.host, s.t0, s.byte_offset, s.bad_lines
            FROM sampler s JOIN run ON run.id = s.run_id;
INSERT INTO alembic_version (version_num) VALUES ('0012');
