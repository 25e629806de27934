module github.com/clusterring/clusterring/tools/controlplane

go 1.26.0
