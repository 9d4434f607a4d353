BEGIN TRANSACTION;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    created_at REAL NOT NULL,
    level TEXT NOT NULL,
    type TEXT NOT NULL,
    message TEXT NOT NULL,
    data TEXT
);
INSERT INTO "events" VALUES(1,'ftevent-d403946bd94441e8248c8194','ftjob-694d2bf41d49fd3d1ca75006',1.79524403312676668169e+09,'info','message','Created fine-tuning job: ftjob-694d2bf41d49fd3d1ca75006',NULL);
INSERT INTO "events" VALUES(2,'ftevent-c4fd80522b0fb69169c9e365','ftjob-694d2bf41d49fd3d1ca75006',1.79524403312681055068e+09,'info','message','Validating training file: file-ec2d62e8b0b64193f395396a',NULL);
INSERT INTO "events" VALUES(3,'ftevent-762008dec703f0e2653d8842','ftjob-694d2bf41d49fd3d1ca75006',1.79524403312988615035e+09,'info','message','Files validated, moving job to queued state',NULL);
INSERT INTO "events" VALUES(4,'ftevent-91a711160f46185781195a09','ftjob-694d2bf41d49fd3d1ca75006',1.79524403313383173943e+09,'info','message','Fine-tuning job started',NULL);
INSERT INTO "events" VALUES(5,'ftevent-cfffd0033b68b716eff5c777','ftjob-694d2bf41d49fd3d1ca75006',1.79524403330231904982e+09,'info','metrics','Step 1/6','{"step": 1, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 0.5, "tokens": 20}');
INSERT INTO "events" VALUES(6,'ftevent-61e06945239dc4ad8329d115','ftjob-694d2bf41d49fd3d1ca75006',1.79524403347074985501e+09,'info','metrics','Step 2/6','{"step": 2, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 1.0, "tokens": 40}');
INSERT INTO "events" VALUES(7,'ftevent-e0add7b504dbf10e4069742b','ftjob-694d2bf41d49fd3d1ca75006',1.79524403363892602917e+09,'info','metrics','Step 3/6','{"step": 3, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 1.5, "tokens": 60}');
INSERT INTO "events" VALUES(8,'ftevent-d74fadf36a2b184ccf01f269','ftjob-694d2bf41d49fd3d1ca75006',1.79524403380862164502e+09,'info','metrics','Step 4/6','{"step": 4, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 2.0, "tokens": 80}');
INSERT INTO "events" VALUES(9,'ftevent-d778b0981acbe9d2550b2057','ftjob-694d2bf41d49fd3d1ca75006',1.79524403397809529303e+09,'info','metrics','Step 5/6','{"step": 5, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 2.5, "tokens": 100}');
INSERT INTO "events" VALUES(10,'ftevent-7717353f48ad60ac67155409','ftjob-694d2bf41d49fd3d1ca75006',1.79524403414588308329e+09,'info','metrics','Step 6/6','{"step": 6, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 3.0, "tokens": 120}');
INSERT INTO "events" VALUES(11,'ftevent-8ff08923a0b6efda999b6728','ftjob-694d2bf41d49fd3d1ca75006',1.79524403415116119383e+09,'info','message','New fine-tuned model created: ft:sim::d84add080216','{"swap_s": 0.0004, "proof": {"matches": true, "detail": {"kind": "digest", "loaded": "d5e6b913060ebf9973787ab8bf94b411c6046c719eafc6265ddf4579a8d6057a", "saved": "d5e6b913060ebf9973787ab8bf94b411c6046c719eafc6265ddf4579a8d6057a"}}}');
INSERT INTO "events" VALUES(12,'ftevent-518c114a7ffa838a18b3b142','ftjob-694d2bf41d49fd3d1ca75006',1.79524403415117764478e+09,'info','message','The job has successfully completed',NULL);
INSERT INTO "events" VALUES(13,'ftevent-0207ed9dd7b666e23b40363a','ftjob-c518c9e6a8fd0e5dc06012dd',1.79524403417199158667e+09,'info','message','Created fine-tuning job: ftjob-c518c9e6a8fd0e5dc06012dd',NULL);
INSERT INTO "events" VALUES(14,'ftevent-9bfbad7da7f7bfef3adc9d14','ftjob-c518c9e6a8fd0e5dc06012dd',1.7952440341720046997e+09,'info','message','Validating training file: file-ec2d62e8b0b64193f395396a',NULL);
INSERT INTO "events" VALUES(15,'ftevent-cee7fbb96d6f8b39e36ec2c1','ftjob-c518c9e6a8fd0e5dc06012dd',1.79524403417303824422e+09,'info','message','Files validated, moving job to queued state',NULL);
INSERT INTO "events" VALUES(16,'ftevent-17cea037b14b15638968e4a4','ftjob-c518c9e6a8fd0e5dc06012dd',1.79524403417369985587e+09,'info','message','Fine-tuning job started',NULL);
INSERT INTO "events" VALUES(17,'ftevent-36f7ae1c00cfb52b13420965','ftjob-290f1d7f27c0c022c3c8cb1f',1.79524403417448687549e+09,'info','message','Created fine-tuning job: ftjob-290f1d7f27c0c022c3c8cb1f',NULL);
INSERT INTO "events" VALUES(18,'ftevent-0d851b67fa20f76168f2d43d','ftjob-290f1d7f27c0c022c3c8cb1f',1.79524403417449522016e+09,'info','message','Validating training file: file-ec2d62e8b0b64193f395396a',NULL);
INSERT INTO "events" VALUES(19,'ftevent-e6d65428a1b415ac38e7dd47','ftjob-290f1d7f27c0c022c3c8cb1f',1.79524403417604708679e+09,'info','message','Files validated, moving job to queued state',NULL);
INSERT INTO "events" VALUES(20,'ftevent-920d229668aa02b05ca2cfb4','ftjob-c518c9e6a8fd0e5dc06012dd',1.79524403434405708307e+09,'info','metrics','Step 1/6','{"step": 1, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 0.5, "tokens": 20}');
CREATE TABLE files (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    created_at REAL NOT NULL,
    deleted_at REAL
);
INSERT INTO "files" VALUES(1,'file-ec2d62e8b0b64193f395396a','train.jsonl','fine-tune',910,'19f3402aa41f431d71c545acce7783aaa0fe09f36ef3f1210ba99a93c86187a4',1.79524403310842633248e+09,NULL);
INSERT INTO "files" VALUES(2,'file-b851bc6d0811dcaf326d9fae','step_metrics.csv','fine-tune-results',147,'9251bc4d0544e4223f6587d433a0d334cfb46207977425839dcd686e07ee67b0',1.79524403415074872971e+09,NULL);
CREATE TABLE job_metadata (
    job_seq INTEGER NOT NULL REFERENCES jobs (seq),
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (key, value, job_seq)
) WITHOUT ROWID;
INSERT INTO "job_metadata" VALUES(1,'k','v');
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    idempotency_key TEXT UNIQUE,
    payload_digest TEXT NOT NULL,
    method TEXT NOT NULL,
    model TEXT NOT NULL,
    base_model TEXT NOT NULL,
    parent TEXT,
    training_file TEXT NOT NULL,
    validation_file TEXT,
    settings TEXT NOT NULL,
    seed INTEGER NOT NULL,
    metadata TEXT,
    suffix TEXT,
    adapter_name TEXT NOT NULL UNIQUE,
    adapter_digest TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,
    error TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    finished_at REAL,
    attempts INTEGER NOT NULL DEFAULT 0,
    child_pid INTEGER,
    child_identity TEXT,
    progress TEXT,
    result TEXT,
    result_file TEXT
);
INSERT INTO "jobs" VALUES(1,'ftjob-694d2bf41d49fd3d1ca75006','first','d432fa618fe616fa0407e859672c276eecd00653c6f18f06c12a6bee07a0e42f','supervised','sim','sim',NULL,'file-ec2d62e8b0b64193f395396a',NULL,'{"n_epochs":3,"batch_size":8,"learning_rate_multiplier":1.0,"learning_rate":0.0002,"lora_rank":4,"lora_alpha":8.0,"lora_dropout":0.0,"lora_target_modules":"all-linear","max_length":32768,"warmup_ratio":0.0,"lr_scheduler":"linear","weight_decay":0.0,"start_from":"base"}',1,'{"k": "v"}',NULL,'ft:sim::d84add080216','d84add080216','succeeded',NULL,1.79524403312667798996e+09,1.79524403313374614722e+09,1.79524403415099692345e+09,1,NULL,NULL,'{"step": 6, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 3.0, "tokens": 120, "at": 1795244034.145948}','{"examples": 10, "steps": 6, "tokens": 120, "wall_s": 1.0138256489990454, "final_loss": null, "swap_s": 0.00044616500053962227, "proof": {"matches": true, "detail": {"kind": "digest", "loaded": "d5e6b913060ebf9973787ab8bf94b411c6046c719eafc6265ddf4579a8d6057a", "saved": "d5e6b913060ebf9973787ab8bf94b411c6046c719eafc6265ddf4579a8d6057a"}}}','file-b851bc6d0811dcaf326d9fae');
INSERT INTO "jobs" VALUES(2,'ftjob-c518c9e6a8fd0e5dc06012dd','second','e7884cea9f59e11c347ef85d96aed5ea137cba3eefc4e9ea4f2d32594ba3ad90','supervised','ft:sim::d84add080216','sim','ft:sim::d84add080216','file-ec2d62e8b0b64193f395396a',NULL,'{"n_epochs":3,"batch_size":8,"learning_rate_multiplier":1.0,"learning_rate":0.0002,"lora_rank":4,"lora_alpha":8.0,"lora_dropout":0.0,"lora_target_modules":"all-linear","max_length":32768,"warmup_ratio":0.0,"lr_scheduler":"linear","weight_decay":0.0,"start_from":"continue"}',2,NULL,NULL,'ft:sim::39d8db076e81','39d8db076e81','running',NULL,1.79524403417195653918e+09,1.79524403417367506025e+09,NULL,1,NULL,NULL,'{"step": 1, "total_steps": 6, "train_loss": null, "learning_rate": 0.0002, "epoch": 0.5, "tokens": 20, "at": 1795244034.34415}',NULL,NULL);
INSERT INTO "jobs" VALUES(3,'ftjob-290f1d7f27c0c022c3c8cb1f','third','a8f6b9563d84449cb855cdb7cf129c19a27094b9f00d75406eb09deff90c622e','supervised','sim','sim',NULL,'file-ec2d62e8b0b64193f395396a',NULL,'{"n_epochs":3,"batch_size":8,"learning_rate_multiplier":1.0,"learning_rate":0.0002,"lora_rank":16,"lora_alpha":32.0,"lora_dropout":0.0,"lora_target_modules":"all-linear","max_length":32768,"warmup_ratio":0.0,"lr_scheduler":"linear","weight_decay":0.0,"start_from":"base"}',3,NULL,NULL,'ft:sim::984cbf8e4ae4','984cbf8e4ae4','queued',NULL,1.79524403417446517944e+09,NULL,NULL,0,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "meta" VALUES('engine_epoch','1');
CREATE TABLE models (
    name TEXT PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    base_model TEXT NOT NULL,
    job_id TEXT NOT NULL REFERENCES jobs (id),
    parent TEXT,
    content_digest TEXT NOT NULL,
    created_at REAL NOT NULL,
    proof TEXT NOT NULL,
    engine_epoch INTEGER NOT NULL,
    problem TEXT,
    deleted_at REAL
);
INSERT INTO "models" VALUES('ft:sim::d84add080216','d84add080216','sim','ftjob-694d2bf41d49fd3d1ca75006',NULL,'6db5702b699698b895d2fb4c7ab93d991aee376c3c7064b04d4bb0811cc5da04',1.79524403415109944344e+09,'{"matches": true, "detail": {"kind": "digest", "loaded": "d5e6b913060ebf9973787ab8bf94b411c6046c719eafc6265ddf4579a8d6057a", "saved": "d5e6b913060ebf9973787ab8bf94b411c6046c719eafc6265ddf4579a8d6057a"}}',1,NULL,NULL);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE INDEX events_by_job ON events (job_id, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('files',2);
INSERT INTO "sqlite_sequence" VALUES('jobs',3);
INSERT INTO "sqlite_sequence" VALUES('events',20);
COMMIT;
