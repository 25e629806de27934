module github.com/clusterring/clusterring/services/leasemonitor

go 1.26.0
