package limits

import (
	"fmt"
)

// The codes of an [Error] that callers tell apart. Bad input has further codes, named after the field
// ("invalid_window", "unknown_field", …), all with Status 400.
const (
	CodeUnknownPolicy = "unknown_policy" // 404
	CodeIDConflict    = "id_conflict"    // 409: the id was used with another body
	CodeUnknownID     = "unknown_id"     // 404: settle of an id that no consume is known under
	// CodeNothingToSettle is 409: settle of an id that charged nothing.
	CodeNothingToSettle = "nothing_to_settle"
	CodeTooLarge        = "too_large" // 413: request over MaxRequestBytes, or it or its answer over what NATS takes in one message
	CodeTooManyLimits   = "too_many_limits"
	CodeOverloaded      = "overloaded"  // 503: the worker's queue is full
	CodeUnavailable     = "unavailable" // 503: the store cannot be reached
)

// Error is an answer that is not a decision. The service sends it as {"error":{…}} with the micro headers
// Nats-Service-Error and Nats-Service-Error-Code.
type Error struct {
	// Code is a stable word for programs, such as "invalid_window".
	Code string `json:"code"`
	// Field is the request field at fault, as a path such as "limits[2].window"; empty when there is none.
	Field string `json:"field,omitempty"`
	// Message says the act, the value and the way out.
	Message string `json:"message"`
	// Status is the numeric code of the header: 400, 404, 409, 413 or 503.
	Status int `json:"-"`
}

// Error gives the message with its code.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d %s)", e.Message, e.Status, e.Code)
}

// Temporary tells whether the same request may succeed later: true for 503.
func (e *Error) Temporary() bool { return e.Status == 503 }

// ErrorBody is the JSON body of an answer that is not a decision.
type ErrorBody struct {
	Error *Error `json:"error"`
}
