package bus

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/policy"
)

// reader reads one request strictly, token by token. Names are case-sensitive. A name given twice,
// invalid UTF-8, and anything after the object are errors. It does not fill a struct, because each
// error names the path and value of its field, and because an absent field differs from a zero.
type reader struct {
	dec *jsontext.Decoder
	src bytes.Buffer
	// scratch holds the last string that had escapes.
	scratch []byte
	// item is the index in limits of the object being read, or -1 outside of limits.
	item int
}

func newReader() *reader { return &reader{dec: jsontext.NewDecoder(new(bytes.Buffer)), item: -1} }

func isBlank(data []byte) bool { return len(bytes.TrimLeft(data, " \t\r\n")) == 0 }

// document reads data, which must be one JSON object, and calls member with the name of each
// member. The name is valid until the member's value is read, which member must do.
func (r *reader) document(data []byte, member func(name []byte) error) error {
	if len(data) > limits.MaxRequestBytes {
		return &limits.Error{Status: 413, Code: limits.CodeTooLarge, Message: fmt.Sprintf(
			"the request has %d bytes; at most %d are allowed", len(data), limits.MaxRequestBytes)}
	}
	if isBlank(data) {
		return badInput("json", "", "the request is empty; want a JSON object")
	}
	r.src = *bytes.NewBuffer(data)
	r.dec.Reset(&r.src)
	r.item = -1
	if k := r.dec.PeekKind(); k != '{' {
		v, err := r.value()
		if err != nil {
			return err
		}
		// The value may be an API key, which no answer or statistics may show.
		return badInput("json", "", "the request must be a JSON object; got %s", kindName(v.Kind()))
	}
	if err := r.object(member); err != nil {
		return err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return badInput("json", "", "unexpected data after the JSON object; want one object")
	}
	return nil
}

// object reads the object that comes next.
func (r *reader) object(member func(name []byte) error) error {
	if _, err := r.dec.ReadToken(); err != nil {
		return r.syntax(err)
	}
	for {
		switch r.dec.PeekKind() {
		case '}':
			_, err := r.dec.ReadToken()
			return r.syntax(err)
		case '"':
			v, err := r.dec.ReadValue()
			if err != nil {
				return r.syntax(err)
			}
			if err := member(r.unquote(v)); err != nil {
				return err
			}
		default:
			_, err := r.dec.ReadToken()
			if err == nil {
				err = errors.New("want a field name")
			}
			return r.syntax(err)
		}
	}
}

// value reads the value that comes next. It is valid until the next read. Of an object or array, which no caller wants, it
// reads and returns the first character alone: to read thousands of them in each other takes milliseconds.
func (r *reader) value() (jsontext.Value, error) {
	if k := r.dec.PeekKind(); k == '{' || k == '[' {
		return jsontext.Value{byte(k)}, nil
	}
	v, err := r.dec.ReadValue()
	return v, r.syntax(err)
}

// unquote returns the text of a JSON string that the decoder has accepted. It is valid until the
// next read.
func (r *reader) unquote(v jsontext.Value) []byte {
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1]
	}
	r.scratch, _ = jsontext.AppendUnquote(r.scratch[:0], v)
	return r.scratch
}

// string reads a string.
func (r *reader) string(field string) ([]byte, error) {
	v, err := r.value()
	if err != nil {
		return nil, err
	}
	if v.Kind() != '"' {
		return nil, r.bad(field, "%s must be a string; got %s", field, quote(v))
	}
	return r.unquote(v), nil
}

// printable reads a string of min to max bytes whose characters are all printable. A space is
// printable; other white space and control characters are not.
func (r *reader) printable(field string, min, max int) ([]byte, error) {
	s, err := r.string(field)
	if err != nil {
		return nil, err
	}
	if err := policy.CheckText(field, s, min, max); err != nil {
		return nil, r.bad(field, "%s", err)
	}
	return s, nil
}

// secret reads a string that no error may show.
func (r *reader) secret(field string) (string, error) {
	v, err := r.value()
	if err != nil {
		return "", err
	}
	if v.Kind() != '"' {
		return "", r.bad(field, "%s must be a string; got %s", field, kindName(v.Kind()))
	}
	return string(r.unquote(v)), nil
}

// number reads a whole number in any notation: some encoders write 100 as 100.0 or 1e2.
func (r *reader) number(field string, min, max int64) (int64, error) {
	v, err := r.value()
	if err != nil {
		return 0, err
	}
	n, whole := int64(-1), v.Kind() == '0'
	if whole {
		n, whole = wholeNumber(v)
	}
	if !whole {
		return 0, r.bad(field, "%s must be a whole number; got %s", field, quote(v))
	}
	if n < min || n > max {
		// Of 01 the decoder takes 0 for the number and reports the rest with the next token.
		if rest := r.dec.UnreadBuffer(); len(rest) > 0 && bytes.IndexByte([]byte(" \t\r\n,]}"), rest[0]) < 0 {
			_, err := r.dec.ReadToken()
			return 0, r.syntax(err)
		}
		return 0, r.bad(field, "%s %s is out of range; want %d to %d", field, quote(v), min, max)
	}
	return n, nil
}

// wholeNumber parses a JSON number. n is -1 if it is below 0 or larger than any range.
func wholeNumber(v jsontext.Value) (n int64, whole bool) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return max(n, -1), true
	}
	// No range reaches 2^53, from which on a float64 cannot hold every whole number.
	f, err := strconv.ParseFloat(string(v), 64)
	switch {
	case err != nil || math.Abs(f) >= 1<<53:
		return -1, true
	case f != math.Trunc(f):
		return 0, false
	}
	return max(int64(f), -1), true
}

// bool reads true or false.
func (r *reader) bool(field string) (bool, error) {
	v, err := r.value()
	if err != nil {
		return false, err
	}
	if k := v.Kind(); k != 't' && k != 'f' {
		return false, r.bad(field, "%s must be true or false; got %s", field, quote(v))
	}
	return v.Kind() == 't', nil
}

// unknown is the error of a member that the object must not have.
func (r *reader) unknown(name []byte, known string) error {
	if len(name) > 64 {
		name = append(bytes.ToValidUTF8(name[:64], nil), "…"...)
	}
	return &limits.Error{Status: 400, Code: "unknown_field", Field: r.path(string(name)),
		Message: fmt.Sprintf("unknown field %q; want %s", name, known)}
}

// bad is the error of a field of the object being read.
func (r *reader) bad(field, format string, args ...any) error {
	return badInput(field, r.path(field), format, args...)
}

// path is the field's path in the request.
func (r *reader) path(field string) string { return itemPath(r.item, field) }

func itemPath(item int, field string) string {
	if item < 0 {
		return field
	}
	return "limits[" + strconv.Itoa(item) + "]." + field
}

// syntax turns an error of the decoder into one of the wire contract.
func (r *reader) syntax(err error) error {
	if err == nil {
		return nil
	}
	se := new(jsontext.SyntacticError)
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		name := "a field"
		if errors.As(err, &se) {
			name = fmt.Sprintf("field %q", short(se.JSONPointer.LastToken()))
		}
		return badInput("json", "", "%s is given twice in one object", name)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return badInput("json", "", "the request is not valid JSON: it ends too early")
	case errors.As(err, &se):
		return badInput("json", "", "the request is not valid JSON: %s at byte %d", replaceUnprintable(se.Err.Error()), se.ByteOffset)
	default:
		return badInput("json", "", "the request is not valid JSON: %s", replaceUnprintable(err.Error()))
	}
}

// badInput is an error 400 whose code is named after the field.
func badInput(code, path, format string, args ...any) error {
	return &limits.Error{Status: 400, Code: "invalid_" + code, Field: path, Message: fmt.Sprintf(format, args...)}
}

// invalid is badInput for a field that is at the top of the request.
func invalid(field, format string, args ...any) error {
	return badInput(field, field, format, args...)
}

// mixedForms is the error of a request that says one thing in two ways.
func mixedForms(field, format string, args ...any) error {
	return &limits.Error{Status: 400, Code: "mixed_forms", Field: field, Message: fmt.Sprintf(format, args...)}
}

// replaceUnprintable makes text that may contain bytes of the request fit for a header.
func replaceUnprintable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// quote shows a JSON value in a message. Of an object or array it shows only the kind.
func quote(v jsontext.Value) string {
	switch k := v.Kind(); k {
	case '"':
		s, _ := jsontext.AppendUnquote(nil, v)
		return quoteText(s)
	case '0':
		return short(string(v))
	default:
		return kindName(k)
	}
}

func quoteText[T string | []byte](s T) string { return strconv.QuoteToGraphic(short(string(s))) }

// short truncates text for a message.
func short(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	cut := most
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case '0':
		return "a number"
	default:
		return k.String()
	}
}
