// Package testenv gives tests PostgreSQL and NATS servers of their own, and removes them afterwards. Production code must
// not import it.
//
// A package that uses it hands its tests to [Main]:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// [Postgres] is a fresh, migrated database on a server that all tests of the process share. [PostgresServer] is a server
// for one test, which may kill it and start it again. [NATS] is a server inside the test process; [NATSServer] is one in a
// process of its own, for tests that kill it.
//
// PostgreSQL (13 or later) comes from TEST_DATABASE_URL if that is set, otherwise from server binaries on this machine,
// which run a throwaway cluster in a temporary folder. If there are none, apt-get installs them. Tests are never skipped
// because PostgreSQL is missing.
//
// On Linux servers die with the test process, however it ends; on other systems a killed test process leaves them running.
// For goroutine leak checks, first start the servers, then call goleak.IgnoreCurrent.
package testenv
