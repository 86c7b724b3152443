// The official Node client against a running API: argv[2] is its URL, argv[3] what Python gives it as JSON.
// Prints one line of JSON for each rule: {"rule", "error"}; `error` is null where the rule holds.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI, { BadRequestError, ConflictError, NotFoundError, toFile } from "openai";

const given = JSON.parse(process.argv[3]);
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none" });
const { batches } = new Anthropic({
  baseURL: process.argv[2].replace(/\/v1$/, ""), apiKey: "none", defaultHeaders: { "X-Tenant": "node" },
}).messages;
const content = given.content;
const CHAT = "/v1/chat/completions";

const send = (name = "in.jsonl", text = content) =>
  toFile(Buffer.from(text), name).then((file) => client.files.create({ file, purpose: "batch" }));
const create = async (text) => {
  const file = await send("in.jsonl", text);
  return client.batches.create({ input_file_id: file.id, endpoint: CHAT, completion_window: "24h" });
};
const ended = async (id) => {
  for (;;) {
    const batch = await client.batches.retrieve(id);
    if (["completed", "failed", "expired", "cancelled"].includes(batch.status)) return batch;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
};
const message = { model: given.models[0], max_tokens: 8, messages: [{ role: "user", content: "hello" }] };
const messages = (...params) =>
  batches.create({ requests: params.map((one, n) => ({ custom_id: `r${n}`, params: one })) });
const processed = async (id) => {
  for (;;) {
    const batch = await batches.retrieve(id);
    if (batch.processing_status === "ended") return batch;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
};
const all = async (pages) => {
  const found = [];
  for await (const one of pages) found.push(one);
  return found;
};
const keys = (object, ...names) => assert.deepEqual(Object.keys(object).sort(), names.sort());

const rules = {
  "`webhooks.unwrap` accepts every event, also while its secret is replaced": async () => {
    for (const { body, headers } of given.events) {
      const event = await client.webhooks.unwrap(body, headers, given.secret);
      keys(event, "id", "object", "type", "created_at", "data");
      assert.match(event.type, /^(batch|response)\.[a-z_]+$/);
    }
  },
  "files are uploaded, listed in pages, read and deleted": async () => {
    const made = [];
    for (let i = 0; i < 3; i++) made.push(await send(`${i}.jsonl`));
    keys(made[0], "id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status",
      "status_details");
    const listed = (await all(client.files.list({ limit: 2, purpose: "batch" }))).map((file) => file.id);
    assert.deepEqual(listed.slice(0, 3), made.map((file) => file.id).reverse());
    assert.equal(await (await client.files.content(made[0].id)).text(), content);
    assert.equal((await client.files.delete(made[0].id)).deleted, true);
    await assert.rejects(client.files.retrieve(made[0].id), NotFoundError);
  },
  "an upload in parts becomes a file": async () => {
    const whole = Buffer.from(content);
    const upload = await client.uploads.create({
      bytes: whole.length, filename: "a.jsonl", mime_type: "application/jsonl", purpose: "batch",
    });
    const pieces = [whole.subarray(70), whole.subarray(0, 70)];
    const parts = await Promise.all(
      pieces.map(async (piece) => client.uploads.parts.create(upload.id, { data: await toFile(piece, "b") })),
    );
    await assert.rejects(client.uploads.complete(upload.id, { part_ids: [parts[0].id] }), BadRequestError);
    const done = await client.uploads.complete(upload.id, { part_ids: [parts[1].id, parts[0].id] });
    keys(done, "id", "object", "bytes", "created_at", "expires_at", "filename", "purpose", "status", "file");
    assert.equal(await (await client.files.content(done.file.id)).text(), content);
  },
  "a batch is created and awaited, and its output is read": async () => {
    const batch = await ended((await create(content)).id);
    assert.equal(batch.status, "completed");
    assert.deepEqual(batch.request_counts, { total: given.lines, completed: given.lines, failed: 0 });
    const output = await (await client.files.content(batch.output_file_id)).text();
    assert.equal(output.trimEnd().split("\n").length, given.lines);
  },
  "batches are listed in pages; a late cancel is 409": async () => {
    const made = [];
    for (let i = 0; i < 3; i++) made.push((await create(content)).id);
    const listed = (await all(client.batches.list({ limit: 2 }))).map((batch) => batch.id);
    assert.deepEqual(listed.slice(0, 3), made.slice().reverse());
    for (const id of made) await ended(id);
    await assert.rejects(client.batches.cancel(made[0]), ConflictError);
  },
  "errors have status, code, param and the request's id": async () => {
    const wrong = { input_file_id: "file-0", endpoint: "/v1/x", completion_window: "24h" };
    await assert.rejects(client.batches.create(wrong), (error) => {
      assert.ok(error instanceof BadRequestError);
      assert.deepEqual([error.status, error.code, error.param], [400, "invalid_value", "endpoint"]);
      assert.ok(error.requestID);
      return true;
    });
  },
  "the served models are listed": async () => {
    assert.deepEqual((await all(client.models.list())).map((model) => model.id), given.models);
  },
  "message batches are created, awaited and read; a bad request fails alone": async () => {
    const batch = await processed((await messages(message, { ...message, max_tokens: 0 })).id);
    assert.deepEqual(batch.request_counts,
      { processing: 0, succeeded: 1, errored: 1, canceled: 0, expired: 0 });
    const results = {};
    for await (const one of await batches.results(batch.id)) results[one.custom_id] = one.result;
    assert.equal(results.r0.message.content[0].type, "text");
    assert.deepEqual([results.r1.type, results.r1.error.error.type], ["errored", "invalid_request_error"]);
  },
  "message batches are listed with both cursors, canceled and deleted": async () => {
    const made = [];
    for (let i = 0; i < 3; i++) made.unshift((await messages(message)).id);
    assert.deepEqual((await all(batches.list({ limit: 2 }))).slice(0, 3).map((batch) => batch.id), made);
    const newer = await all(batches.list({ limit: 1, before_id: made[2] }));
    assert.deepEqual(newer.slice(0, 2).map((batch) => batch.id), [made[1], made[0]]);
    for (const id of made) await processed(id);
    await assert.rejects(batches.cancel(made[0]), Anthropic.BadRequestError);
    assert.deepEqual(await batches.delete(made[0]), { id: made[0], type: "message_batch_deleted" });
    await assert.rejects(batches.retrieve(made[0]), (error) => {
      assert.ok(error instanceof Anthropic.NotFoundError);
      assert.ok(error.requestID);
      return true;
    });
  },
  "a response with `background: true` is created, retrieved until its end, and cancelled": async () => {
    const ask = { model: given.models[0], input: "hello", background: true };
    let response = await client.responses.create(ask);
    const { id, status } = response;
    assert.equal(status, "queued");
    while (["queued", "in_progress"].includes(response.status)) {
      await new Promise((resolve) => setTimeout(resolve, 250));
      response = await client.responses.retrieve(id);
    }
    assert.deepEqual([response.id, response.status], [id, "completed"]);
    assert.ok(response.output_text);
    const other = await client.responses.create(ask);
    assert.equal((await client.responses.cancel(other.id)).status, "cancelled");
    await assert.rejects(client.responses.create({ ...ask, stream: true }), BadRequestError);
  },
  "`service_tier: flex` holds the connection until the backend has answered": async () => {
    const flex = { model: given.models[0], service_tier: "flex" };
    const completion = await client.chat.completions.create({ ...flex, messages: message.messages });
    assert.ok(completion.choices[0].message.content);
    assert.equal((await client.responses.create({ ...flex, input: "hello" })).status, "completed");
  },
};

for (const [rule, check] of Object.entries(rules)) {
  const error = await check().then(() => null, (reason) => String(reason?.stack ?? reason));
  console.log(JSON.stringify({ rule, error }));
}
