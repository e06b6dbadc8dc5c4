#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iterator>

#include "base/aligned.h"
#include "base/error.h"
#include "base/mapped_file.h"
#include "base/output_file.h"
#include "formats/temp_dir.h"

namespace narrows {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(OutputFile& file, const std::string& text) { file.write(text.data(), text.size()); }

TEST(OutputFile, AppearsWholeOnCommit) {
  const TempDir dir;
  const std::string path = dir.file("out"), large(3 << 20, 'x');
  {
    OutputFile file(path);
    write(file, "head");
    write(file, large);
    write(file, "");
    EXPECT_EQ(file.written(), 4 + large.size());
    EXPECT_FALSE(std::filesystem::exists(path));
    file.commit();
    EXPECT_EQ(contents(path), "head" + large);
  }
  EXPECT_EQ(contents(path), "head" + large);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()), {}),
            1);
}

TEST(OutputFile, LeavesNothingWithoutCommit) {
  const TempDir dir;
  try {
    OutputFile file(dir.file("out"));
    write(file, std::string(2 << 20, 'x'));
    fail("stop");
  } catch (const Error&) {
  }
  EXPECT_TRUE(dir.empty());
}

TEST(OutputFile, KeepsTheOldFileUntilCommit) {
  const TempDir dir;
  const std::string path = dir.write("out", "old");
  {
    OutputFile file(path);
    write(file, "new");
  }
  EXPECT_EQ(contents(path), "old");
  OutputFile file(path);
  write(file, "new");
  file.commit();
  EXPECT_EQ(contents(path), "new");
}

TEST(OutputFile, NamesThePathThatCannotBeWritten) {
  const TempDir dir;
  const std::string path = dir.file("missing/out");
  EXPECT_THAT([&] { OutputFile{path}; },
              ThrowsMessage<Error>(AllOf(HasSubstr(path), HasSubstr("cannot create"))));
  const std::string long_path = dir.file(std::string(5000, 'a'));
  EXPECT_THROW(OutputFile{long_path}, Error);
}

TEST(OutputFile, RefusesADirectory) {
  const TempDir dir;
  const std::string path = dir.file("directory");
  std::filesystem::create_directory(path);
  EXPECT_THAT(
      [&] {
        OutputFile file(path);
        file.commit();
      },
      ThrowsMessage<Error>(HasSubstr(path)));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(std::filesystem::path(path).parent_path()), {}),
            1);
}

void expect_full_disk(const std::string& path) {
  EXPECT_THAT(
      [&] {
        OutputFile file(path);
        write(file, "x");
        file.commit();
      },
      ThrowsMessage<Error>(AllOf(HasSubstr(path), HasSubstr("No space left"))));
}

TEST(OutputFile, ReportsAFullDisk) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "/dev/full is absent";
  // The temporary file is a link to the device that is always full.
  const TempDir dir;
  const std::string path = dir.file("out");
  std::filesystem::create_symlink("/dev/full", path + ".partial." + std::to_string(::getpid()));
  expect_full_disk(path);
  EXPECT_TRUE(dir.empty());
}

TEST(OutputFile, ReplacesWhatALinkPointsTo) {
  const TempDir dir;
  const std::string target = dir.write("target", "old"), link = dir.file("link");
  std::filesystem::create_symlink("target", link);
  OutputFile file(link);
  write(file, "new");
  file.commit();
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(contents(target), "new");
}

TEST(OutputFile, WritesStraightToAPipe) {
  const TempDir dir;
  const std::string path = dir.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  {
    OutputFile file(path);
    write(file, "through");
    file.commit();
  }
  char bytes[16];
  EXPECT_EQ(::read(reader, bytes, sizeof bytes), 7);
  { OutputFile abandoned(path); }
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(path));
}

// As root a rename would put a file in the place of the device.
TEST(OutputFile, LeavesADeviceInItsPlace) {
  const TempDir dir;
  const std::string path = dir.file("full");
  if (::mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 7)) != 0)
    GTEST_SKIP() << "devices can be made by root only";
  const int opened = ::open(path.c_str(), O_WRONLY);
  if (opened < 0) GTEST_SKIP() << "devices cannot be opened here";
  ::close(opened);
  expect_full_disk(path);
  EXPECT_TRUE(std::filesystem::is_character_file(path));
}

TEST(OutputFile, LeavesNothingWhenInterrupted) {
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    const TempDir dir;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      install_interrupt_handler();
      OutputFile done(dir.file("done")), first(dir.file("first")), second(dir.file("second"));
      write(done, "whole");
      done.commit();
      write(first, std::string(2 << 20, 'x'));
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char byte;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ASSERT_EQ(::kill(child, signal_number), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ::close(ready[0]);
    ::close(ready[1]);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal_number) << status;
    EXPECT_EQ(contents(dir.file("done")), "whole");
    std::filesystem::remove(dir.file("done"));
    EXPECT_TRUE(dir.empty());
  }
}

TEST(OutputFile, SaysWhatAnInterruptionLeaves) {
  int errors[2], ready[2];
  ASSERT_EQ(::pipe(errors), 0);
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    install_interrupt_handler();
    ::dup2(errors[1], STDERR_FILENO);
    set_interrupt_note("first\n");
    set_interrupt_note(std::string(5000, 'x'));
    set_interrupt_note("last\n");
    if (::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  ::close(errors[1]);
  char byte, text[100];
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ASSERT_EQ(::kill(child, SIGINT), 0);
  const ssize_t size = ::read(errors[0], text, sizeof(text));
  EXPECT_EQ(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(size, 0))), "last\n");
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  for (const int fd : {errors[0], ready[0], ready[1]}) ::close(fd);
}

TEST(OutputFile, ManyAtOnce) {
  const TempDir dir;
  std::vector<std::unique_ptr<OutputFile>> files;
  for (int i = 0; i < 40; ++i) files.push_back(std::make_unique<OutputFile>(dir.file(std::to_string(i))));
  files.clear();
  EXPECT_TRUE(dir.empty());
}

TEST(MappedFile, HoldsTheBytes) {
  const TempDir dir;
  const std::string path = dir.write("in", "some bytes");
  MappedFile file(path);
  const auto text = [](const MappedFile& f) {
    return std::string(reinterpret_cast<const char*>(f.bytes().data()), f.bytes().size());
  };
  EXPECT_EQ(text(file), "some bytes");
  EXPECT_EQ(file.path(), path);
  MappedFile moved = std::move(file);
  EXPECT_EQ(text(moved), "some bytes");
  MappedFile other(dir.write("other", "others"));
  other = std::move(moved);
  EXPECT_EQ(text(other), "some bytes");
}

TEST(MappedFile, SaysWhatIsWrong) {
  const TempDir dir;
  const std::string missing = dir.file("missing"), empty = dir.write("empty", ""),
                    directory = dir.file("directory");
  std::filesystem::create_directory(directory);
  EXPECT_THAT([&] { MappedFile{missing}; },
              ThrowsMessage<Error>(AllOf(HasSubstr(missing), HasSubstr("No such file"))));
  EXPECT_THAT([&] { MappedFile{empty}; }, ThrowsMessage<Error>(AllOf(HasSubstr(empty), HasSubstr("empty"))));
  EXPECT_THAT([&] { MappedFile{directory}; },
              ThrowsMessage<Error>(AllOf(HasSubstr(directory), HasSubstr("regular file"))));
  EXPECT_THAT([&] { MappedFile{"/dev/null"}; }, ThrowsMessage<Error>(HasSubstr("regular file")));
}

TEST(AlignedVector, StartsOnACacheLine) {
  for (std::size_t n = 1; n < 2000; n = n * 3 + 1) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(AlignedVector<std::byte>(n).data()) % kCacheLine, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(AlignedVector<double>(n).data()) % kCacheLine, 0u);
  }
}

}  // namespace
}  // namespace narrows
