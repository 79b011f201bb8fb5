// Package schemas has the JSON Schemas (draft 2020-12) of requests, replies, events, the policy file and the alerts file, and
// the AsyncAPI document, which says what is sent on which subject. The limiter serves them at /schemas/<file>.
//
// The schemas are generated from the Go types and their comments, by go generate ./schemas. A test fails if they are out of
// date.
package schemas

import "embed"

//go:generate go test . -run UpToDate -update

// FS has all files by their paths, such as events/limits.warning.v1.json.
//
//go:embed api/*.json events/*.json alerts.json policies.json asyncapi.yaml
var FS embed.FS
