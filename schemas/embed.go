// Package schemas holds the JSON Schemas (draft 2020-12) of requests, replies and events, and the AsyncAPI document
// that ties them to their subjects. The limiter serves them at /schemas/<file>.
//
// The schemas are made from the wire types of the module root, and those of the policy file and the alerts file from
// theirs: go test ./schemas -update writes them, and the same test fails when they are stale.
package schemas

import "embed"

//go:generate go test . -run AreFresh -update

// FS has every file under its path, such as events/limits.warning.v1.json.
//
//go:embed api/*.json events/*.json alerts.json policies.json asyncapi.yaml
var FS embed.FS
