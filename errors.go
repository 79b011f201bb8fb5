package limits

import "fmt"

// The codes of an [Error] that callers may want to tell apart. Bad input has further codes, such as "unknown_field" or,
// named after the field, "invalid_window", all with Status 400.
const (
	CodeUnknownPolicy   = "unknown_policy"    // 404
	CodeIDConflict      = "id_conflict"       // 409: the id was used with another body
	CodeUnknownID       = "unknown_id"        // 404: settle of an id that is not known, or no longer
	CodeNothingToSettle = "nothing_to_settle" // 409: settle of an id that is not that of an allowed consume or verify
	CodeTooLarge        = "too_large"         // 413: a request over MaxRequestBytes, or a request or an answer over what NATS takes in one message
	CodeTooManyLimits   = "too_many_limits"   // 413: more than MaxLimits limits in one request, or in the policies that it matches
	CodeOverloaded      = "overloaded"        // 503: the worker has too many requests to answer in time
	CodeUnavailable     = "unavailable"       // 503: the store cannot be reached, or no limiter is listening
)

// Error is an answer of the service that reports an error. It is sent as {"error":{...}} with the headers
// Nats-Service-Error and Nats-Service-Error-Code.
type Error struct {
	// Code is a stable word for programs, such as "invalid_window".
	Code string `json:"code"`
	// Field is the request field at fault, as a path such as "limits[2].window"; left out if none is.
	Field string `json:"field,omitempty"`
	// Message says what was attempted, with what value, and how to correct it.
	Message string `json:"message"`
	// Status is the numeric code of the header: 400, 404, 409, 413 or 503.
	Status int `json:"-"`
}

// Error returns the message with its status and code.
func (e *Error) Error() string {
	return fmt.Sprintf("%s (%d %s)", e.Message, e.Status, e.Code)
}

// Temporary reports whether the same request may succeed later: true for status 503.
func (e *Error) Temporary() bool { return e.Status == 503 }

// ErrorBody is the JSON body of an answer that reports an error.
type ErrorBody struct {
	Error *Error `json:"error"`
}
