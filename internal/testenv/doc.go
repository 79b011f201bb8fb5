// Package testenv gives tests a PostgreSQL and a NATS of their own, and takes them away afterwards. Nothing that
// ships may import it.
//
// A package that uses it hands its tests to [Main]:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// [Postgres] is a fresh, migrated database on a server that all tests of the process share; [PostgresServer] is a
// server of one test's own, which may be killed and started again. [NATS] is a server inside the test process;
// [NATSServer] is one in a process of its own, for tests that kill it.
//
// PostgreSQL (13 or later) comes from TEST_DATABASE_URL, else from server binaries on this machine, which run a
// throwaway cluster in a temporary folder, else apt-get installs them. A test never skips for want of it.
//
// Servers die with the test process, however that ends (Linux; elsewhere a process that is killed leaves them
// behind). For goroutine leak checks: ask for the servers first, then take goleak.IgnoreCurrent.
package testenv
