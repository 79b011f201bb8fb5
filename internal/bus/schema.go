package bus

import (
	"strings"

	"github.com/seed503877ad/limits"
)

// The schemas that endpoints and events refer to, as paths below the schema base. Package schemas
// has the files.
const (
	schemaError = "api/error.v1.json"
	asyncAPI    = "asyncapi.yaml"
)

// requestSchema is the schema of the requests on a subject.
func requestSchema(subject string) string {
	switch subject {
	case limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectRefund:
		return apiSchema("request")
	case limits.SubjectUsage:
		return apiSchema("log-entry")
	}
	return apiSchema(endpointName(subject) + "-request")
}

// replySchema is the schema of the answers on a subject; empty if there are none.
func replySchema(subject string) string {
	switch subject {
	case limits.SubjectConsume, limits.SubjectCheck, limits.SubjectRecord, limits.SubjectRefund, limits.SubjectSettle:
		return apiSchema("reply")
	case limits.SubjectUsage:
		return ""
	case limits.SubjectKeysRevoke, limits.SubjectKeysExpire:
		return apiSchema("key")
	case limits.SubjectAlertsSilence, limits.SubjectAlertsUnsilence:
		return apiSchema("silence")
	}
	return apiSchema(endpointName(subject))
}

func apiSchema(body string) string { return "api/" + strings.TrimPrefix(body, "admin-") + ".v1.json" }

// eventSchema is the schema of the data of a type of event.
func eventSchema(kind string) string { return "events/" + kind + ".v1.json" }
