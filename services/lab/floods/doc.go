// Package floods tests that the services survive floods with the memory that the manifests give them.
//
// Its tests run the real binaries, with the permissions of their service accounts and without GOMEMLIMIT, and flood
// them as a tenant or a process in the cluster could. Every service must remain ready, do its work, and never have used
// more than half of the memory that its Deployment allows.
package floods
