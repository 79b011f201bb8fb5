// Package schemas holds the JSON Schemas (draft 2020-12) of requests, replies and events, and the AsyncAPI document
// that ties them to their subjects. The limiter serves them at /schemas/<file>.
//
// The schemas are made from the wire types of the module root, and those of the policy file and the alerts file from theirs: go test ./schemas -update writes them, and the
// same test fails when they are stale.
package schemas

import "embed"

//go:generate go test . -run AreFresh -update

// FS has every file under its path, such as events/limits.warning.v1.json.
//
//go:embed api/*.json events/*.json alerts.json policies.json asyncapi.yaml
var FS embed.FS

// Names gives the paths of the JSON Schemas.
func Names() []string {
	return []string{
		"alerts.json",
		"api/alerts-channels-request.v1.json",
		"api/alerts-channels.v1.json",
		"api/alerts-dead-request.v1.json",
		"api/alerts-dead.v1.json",
		"api/alerts-list-request.v1.json",
		"api/alerts-list.v1.json",
		"api/alerts-replay-request.v1.json",
		"api/alerts-replay.v1.json",
		"api/alerts-show-request.v1.json",
		"api/alerts-show.v1.json",
		"api/alerts-silence-request.v1.json",
		"api/alerts-silences-request.v1.json",
		"api/alerts-silences.v1.json",
		"api/alerts-test-request.v1.json",
		"api/alerts-test.v1.json",
		"api/alerts-unsilence-request.v1.json",
		"api/error.v1.json",
		"api/jobs-history-request.v1.json",
		"api/jobs-history.v1.json",
		"api/jobs-list-request.v1.json",
		"api/jobs-list.v1.json",
		"api/jobs-run-request.v1.json",
		"api/jobs-run.v1.json",
		"api/key.v1.json",
		"api/keys-create-request.v1.json",
		"api/keys-create.v1.json",
		"api/keys-expire-request.v1.json",
		"api/keys-list-request.v1.json",
		"api/keys-list.v1.json",
		"api/keys-revoke-request.v1.json",
		"api/list-request.v1.json",
		"api/list.v1.json",
		"api/log-entry.v1.json",
		"api/overrides-delete-request.v1.json",
		"api/overrides-delete.v1.json",
		"api/overrides-list-request.v1.json",
		"api/overrides-list.v1.json",
		"api/overrides-set-request.v1.json",
		"api/overrides-set.v1.json",
		"api/policies-request.v1.json",
		"api/policies.v1.json",
		"api/reply.v1.json",
		"api/request.v1.json",
		"api/reset-request.v1.json",
		"api/reset.v1.json",
		"api/settle-request.v1.json",
		"api/silence.v1.json",
		"api/status-request.v1.json",
		"api/status.v1.json",
		"api/top-request.v1.json",
		"api/top.v1.json",
		"api/usage-request.v1.json",
		"api/usage.v1.json",
		"api/verify-request.v1.json",
		"api/verify.v1.json",
		"events/alerts.digest.v1.json",
		"events/alerts.raised.v1.json",
		"events/alerts.resolved.v1.json",
		"events/alerts.test.v1.json",
		"events/limits.exceeded.v1.json",
		"events/limits.report.v1.json",
		"events/limits.warning.v1.json",
		"policies.json",
	}
}
